"""Training recipe: one YAML from the model to the samples.

`recipe.TrainRecipe` and `recipe.load`; `changes` says what a resumed run may change, `guard_spec`
configures the guard, `skip_windows` are data steps left out.
"""
