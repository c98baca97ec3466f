"""Captioning: captions that a vision-language model writes, through a chat server.

`stage.run_caption` is the stage, `spec` its settings, `prompts` what the model is asked. `frames` reads the
pictures, `client` asks, `answers` keeps RUN/captions.jsonl, `verdict` says which answers become captions,
`estimate` what the rest costs, `merge` adds the captions to the table.
"""
