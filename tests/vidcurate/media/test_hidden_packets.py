"""Hidden pictures of VP9 in packets of their own are no frames, and hide no frame that is missing."""

import os
from pathlib import Path

import av
import pytest

from tests.vidcurate.curation.probe.test_clean_clips import hidden_pictures
from vidcurate.media.coded_units.hidden_pictures import hides_all
from vidcurate.media.headers import read_header_and_index

STEP = 40  # ticks of a frame


@pytest.mark.parametrize("lost", [0, 3])
@pytest.mark.parametrize("takes_time", [True, False])
def test_frames_lost_beside_hidden_pictures_are_missing(tmp_path: Path, takes_time: bool, lost: int) -> None:
    whole, path = tmp_path / "a.mp4", tmp_path / "b.mp4"
    hidden = hidden_pictures(whole)
    assert hidden >= lost
    separate = {"fflags": "-autobsf"}  # else the muxer joins a hidden picture with the next
    with av.open(os.fspath(whole)) as source, av.open(os.fspath(path), "w", options=separate) as output:
        stream = source.streams.video[0]
        target = output.add_stream_from_template(stream)
        place = 0  # of the next shown picture
        for number, packet in enumerate(packet for packet in source.demux(stream) if packet.size):
            is_hidden = hides_all("vp9", bytes(packet))
            packet.pts = packet.dts = place * STEP - (is_hidden and not takes_time)  # a tick before it
            place += takes_time or not is_hidden
            if not 30 <= number < 30 + lost:
                packet.stream = target
                output.mux(packet)

    _, index = read_header_and_index(path)

    assert (index.num_frames, index.num_hidden, index.num_missing_frames) == (60 - lost, hidden, lost)
