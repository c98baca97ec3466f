"""Model scores: CLIP, aesthetic, watermark and text area, by neural networks.

`stage.run_models` is the stage, `scorers` loads the models, `frames` decodes what they are shown.
"""
