"""Configs supported by the twin. `python3 known_config.py CONFIG.JSON` checks one. Needs no PyTorch."""

import copy
import json
import sys

# Sections that do not change the values of a step: location, speed, length; and the model, which model_settings() checks.
IGNORED = {"model", "memory", "parallel", "eval", "record", "cuda", "checkpoint", "precision", "device", "threads", "seed"}
KNOWN = {
    "data": {"train", "val", "val_tokens", "vocabulary", "max_document_tokens", "document_mask", "allow_overlap"},
    "batch": {"sequence_length", "microbatch_tokens", "tokens_per_step"},
    "optimizers": {"clip", "clip_norm", "groups"},
    "schedule": {"steps", "warmup_steps", "decay", "cooldown_fraction", "final_lr_fraction"},
}
GROUP = {"type", "params", "lr", "weight_decay", "beta1", "beta2", "epsilon", "momentum", "momentum_start",
         "momentum_warmup_steps", "nesterov"}
# Keys without an implementation in the twin, with the only value that it accepts.
ONLY = {
    "data": {"rows": "stream", "shuffle": False},
    "schedule": {"stages": [], "lr_factor": 1, "final_steps": 0, "scale_final_lr": True},
}
ONLY_OF_GROUP = {"cautious": False, "normuon": False, "every": 1, "weight_decay_by": "lr", "moments_dtype": "f32",
                 "weights_dtype": "f32", "momentum_cooldown_steps": 0, "polar_epsilon": 1e-6, "heads_per_matrix": 0,
                 "decays_unmoved": True, "average": None, "slow_momentum": 0}
UNUSED_OF_GROUP = {"normuon_lines", "slow_start", "slow_blend", "fast_momentum"}  # keys of normuon and slow_momentum, which are refused


def require(condition, message):
    if not condition:
        raise SystemExit(f"error: {message}")


def require_only(values, section, only):
    for key, value in only.items():
        require(values[key] == value, f"{section}.{key} {values[key]}: the twin has no {key}; set it to {json.dumps(value)}")


def require_off(values, section, read, normal=None):
    """Requires the normal value of every key that the twin does not read; false, null, zero or nothing if there is no other."""
    for key, value in values.items():
        expected = (normal or {}).get(key)
        if key not in read:
            require(value == expected if expected is not None else not value, f"{section}.{key} {value}: the twin has no {key}")


def is_mix(enter):
    """True for the sum a*x + b*x0 with a learned vector (a, b) that starts at (1, 0)."""
    mix = [{"of": "stream", "scale": 1, "name": "mix"}, {"of": "first", "scale": 0, "name": "mix"}]
    terms = [{key: value for key, value in term.items() if value not in ("", None) and key != "constant"}
             for sum_ in enter for term in sum_["terms"] if term["constant"] == 1]
    return len(enter) == 1 and terms == mix


def require_known_layers(layers):
    """Layers are equal except for tables of values in the last ones."""
    each = layers["each"]
    require(each["attention"] and each["mlp"], "model.layers.each: the twin has attention and an MLP in every layer")
    require_off(each["attention"], "attention", {"heads", "bias", "scale", "window", "qk_norm", "rotary", "init", "out_init"},
                {"value_start": 0.5})
    require_off(each["attention"]["rotary"] or {}, "attention.rotary", {"base"}, {"fraction": 1})
    require_off(each["mlp"], "mlp", {"ratio", "activation", "bias", "init", "down_init"})
    require(each["enter"] == [] or is_mix(each["enter"]), "model.layers.each.enter: the twin has the learned mix with x0 alone")
    require(each["attention"]["window"].isdigit(), "attention.window: a number")
    for i, (number, layer) in enumerate(layers["at"].items()):
        expected = copy.deepcopy(each)
        expected["attention"]["value_table"] = f"value_embed.{i}"
        require(layer == expected and number == str(layers["count"] - len(layers["at"]) + i),
                f"model.layers.at.{number}: the twin has tables value_embed.0, value_embed.1, ... in its last layers")


def model_settings(model):
    """The names of the twin for a resolved model. Refuses parts that the twin has no maths for."""
    layers, norms, head = model["layers"], model["norms"], model["head"]
    require_off(model, "model", {"preset", "model_dim", "vocab_size", "init_scale", "init_from", "tables", "windows", "norms", "input",
                                 "layers", "output", "head", "loss"})
    require_off(norms, "model.norms", {"type", "gain", "bias"}, {"epsilon": 1e-5})
    require_off(head, "model.head", {"tied_to", "softcap", "init"}, {"untied_after": -1, "softcap_function": "tanh"})
    require_off(model["loss"], "model.loss", (), {"weights": [1]})
    require_known_layers(layers)
    attention, mlp = layers["each"]["attention"], layers["each"]["mlp"]
    biases, learned = attention["bias"], "position" in model["tables"]
    tables = [part["table"] for part in model["input"] if part["type"] == "table"]
    kinds = [part["type"] for part in model["input"][len(tables):]]
    require(tables == ["embed", "position"][:1 + learned] and kinds in ([], ["norm"]), "model.input: embed, position and norm")
    require([part["type"] for part in model["output"]] == ["norm"], "model.output: norm")
    require(mlp["bias"] == biases and norms["bias"] == (norms["gain"] and biases), "model: biases everywhere or nowhere")
    return {
        "num_layers": layers["count"], "model_dim": model["model_dim"], "num_heads": attention["heads"],
        "mlp_ratio": mlp["ratio"], "vocab_size": model["vocab_size"], "norm": norms["type"], "norm_parameters": norms["gain"],
        "activation": mlp["activation"], "position": "learned" if learned else "rotary",
        "rotary_base": (attention["rotary"] or {}).get("base"), "qk_norm": attention["qk_norm"],
        "tied_head": head["tied_to"] != "", "biases": biases, "logit_softcap": head["softcap"],
        "attention_scale": attention["scale"], "window": int(attention["window"]), "norm_embedding": kinds == ["norm"],
        "mix_first_embedding": layers["each"]["enter"] != [], "value_embeddings": len(layers["at"]),
    }


def read_config(path):
    """Reads the resolved config.json of a run, in which every key has a value. Refuses unsupported keys and values."""
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    require("layers" in config.get("model", {}), f"{path}: no section model.layers; give the config.json of a run folder")
    config["model"] = model_settings(config["model"])
    unknown = [key for key in config if key not in IGNORED and key not in KNOWN]
    for section, known in KNOWN.items():
        require(section in config, f"{path}: no section {section}; give the config.json of a run folder")
        only = ONLY.get(section, {})
        unknown += [f"{section}.{key}" for key in config[section] if key not in known and key not in only]
        missing = [f"{section}.{key}" for key in [*known, *only] if key not in config[section]]
        require(not missing, f"{path}: no {', '.join(missing)}; give the config.json of a run folder")
        require_only(config[section], section, only)
    for group in config["optimizers"]["groups"]:
        known = GROUP | ONLY_OF_GROUP.keys() | UNUSED_OF_GROUP
        unknown += [f"optimizers.groups.{key}" for key in group if key not in known]
        require(group["type"] in ("adamw", "muon"), f"optimizers.groups.type {group['type']}: adamw or muon")
        require(not isinstance(group["momentum"], list), f"optimizers.groups.momentum {group['momentum']}: one number")
        require_only(group, "optimizers.groups", ONLY_OF_GROUP)
    require(not unknown, f"{path}: the twin does not know {', '.join(sorted(set(unknown)))}")
    return config


if __name__ == "__main__":
    read_config(sys.argv[1])
