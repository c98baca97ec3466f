"""Recipes: strict YAML or JSON read into frozen pydantic models.

`recipe.load` reads a file, `recipe.Recipe` is the base of every settings model, `yaml_text` keeps the
line of each key for error messages.
"""
