"""Caption scores: noun count (the difficulty), language, length, boilerplate.

`stage.run_score` is the stage; `nouns` counts nouns by the built-in model or spaCy.
"""
