"""Verbs of video captions by hand: actions, gestures, sounds, motion, camera and scene.

The treebank has few of them. `VERBS` are hardly ever nouns in captions; `VERBS_AND_NOUNS` are both. Only the
base forms stand here: `word_classes.py` adds the third person and the form in -ing.
"""

_VERBS = """
accelerate accompany adjust admire adore align amplify analyze anticipate appear applaud apply approach
argue arrange arrive ascend assemble assist attach await awaken bake bathe beckon become begin behold belong
billow blossom brandish breathe bring browse bury bustle calibrate capture careen caress carry carve
celebrate choose circulate clamber clean cleanse cling close collapse collect collide combine come
communicate compare compete complete compose concentrate confront congregate connect construct contain
contemplate continue contribute converge converse convey cough cower create crouch crumble crumple curtsy
dangle decelerate decorate deepen deflate deflect deliver demonstrate depart depict deploy descend describe
detach devour disappear discard discover discuss disembark dismantle dismount disperse display dissipate
dissolve distribute diverge drag dribble dry eat elevate emerge emit emphasize encircle encounter engage
enhance enjoy enter entertain erupt evoke examine exchange exclaim exhale expand explain explode explore
expose extend extinguish fasten fiddle fidget fill finish flail flaunt flee flicker flit flutter fly follow
forage gather gaze gesticulate get give glide glint glisten gnaw go grapple grasp greet grind grow hang
happen heat hover howl huddle hurl hurtle hydrate ignite ignore illuminate illustrate imitate immerse
indicate inflate inhale initiate inquire insert inspect instruct intensify interact intertwine interview
introduce investigate juggle juxtapose keep knead kneel knit laugh lean leap learn leave linger listen loom
loosen lounge lower lunge maintain maneuver manipulate meander meet melt mimic mingle moisten narrate
navigate nestle nibble nod observe occupy occur ooze operate oscillate overlook overtake own participate
peck peel peer perch perform persist pirouette plod plummet poke ponder portray possess praise prance
prepare press proceed produce promenade propel protrude prowl pulsate pummel purr pursue radiate raise
ramble ransack react read reappear rearrange rebound recede receive recite recline recoil refer reflect
relax remain remove render replace reposition represent resemble respond restrain resume retract retrieve
reveal revolve rinse rotate rumble rummage saunter scamper scatter scramble scribble scrub scurry scuttle
secure seem send serenade serve sew shake shatter shoot shrink shuffle sift simmer sing sit skid skim skip
slam slither smear smolder smooth sneak sniff snore snuggle soak soar solder speak sprawl squirm squirt
stoop straddle straighten strum submerge suggest surround symbolize take teach tend tighten tiptoe topple
traverse tread tremble trudge unbox unbutton uncover undulate unfold unlock unpack unravel unroll unscrew
untie unveil unwrap unzip utilize vanish veer vibrate waddle wade waft wait wander wave wear weave weep
wield withdraw wobble wrestle wriggle write yawn zigzag
"""

_VERBS_AND_NOUNS = """
ache address advance aim answer arch attack attempt back balance bark bat battle beam bend bite blast blaze
blend blink bloom blow board bounce bow box brake branch brush bubble buckle build bump burn burst buzz call
camp care cast catch change charge chase chat check cheer chew chirp chop circle clap clash claw climb clip
clutch coil color comb comment contrast control cook cover crack cradle crash crawl creep croak cross crowd
cruise cry cuddle curl curve cut cycle dance dart dash deal dice dip direct dive dodge dot drape draw dress
drift drill drink drip drive drizzle drop drum duck dump edge embrace end escape exit face fade fall fan
feature feed fight film fire fish fix flame flap flare flash flex flip float flood flow focus fold force
form frame freeze frolic frown gallop gasp gesture giggle glance glare gleam glimmer glitter glow grab grace
graze grill grimace grin grip growl guard guide gust hail hammer hand handle harvest head help highlight
hike hint hit hold hook hop hug hum hunt iron jab jerk jog join joke jolt jump kick kiss knock label land
lap launch lead leak level lick lift light line link lock look love march mark mask massage match meow mix
model mop mount move munch mutter nail note nurse open orbit pace pack paddle paint pan panic part pass
patch pause paw peak pedal peek pet pick pile pin pitch place plan plant play plow plug plunge point polish
pop pose pounce pound pour power practice present print probe prod puff pull pulse pump punch purchase push
quarrel question quiver race rally range reach record reel release repair repeat reply request rest retreat
return ride ring ripple rise roar rock roll rope row rub ruffle run rush rustle sail salute sample scale
scan scold scoop score scowl scrape scratch scream screen seal search set shape share shave shift shimmer
shine ship shiver shock shop shout shove show shower shrug sigh sign signal sip sizzle skate sketch ski slap
sleep slice slide slip slope slow smash smell smile smirk smoke snack snap sneeze snort sound spar spark
sparkle spill spin spiral spit splash splatter split spot spray spread spring sprinkle sprint sprout squat
squeak squeal squeeze squint stab stack stage stagger stain stamp stand star stare start state stay steam
steer step stick sting stir stitch stomp stop strain strap stream stretch stride strike stroke stroll
struggle strut study stumble stunt style suck surf surge swallow swap sway sweat sweep swell swerve swim
swing swipe swirl switch swoop tackle talk tap target taste tear tease thank think thread throw thrust
tickle tie tilt tip toast toss touch tour tow trace track trail train transition travel treat trick trim
trip trot tug tumble tune turn twinkle twirl twist type use view visit voice vote wag walk warm wash watch
water whip whirl whisk whisper whistle whiz wiggle wince wink wipe wish wonder work worry wrap yank yell
yelp zip zoom
"""

VERBS = frozenset(_VERBS.split())
VERBS_AND_NOUNS = frozenset(_VERBS_AND_NOUNS.split())
