"""Config of a model that `speedrun export` wrote. `model` describes its parts, `parameters` their shapes."""

from transformers import PretrainedConfig


class SpeedrunConfig(PretrainedConfig):
    model_type = "speedrun"

    def __init__(self, model=None, parameters=None, **kwargs):
        self.model = model or {}
        self.parameters = parameters or {}
        super().__init__(**kwargs)
