"""Configs supported by the twin. `python3 known_config.py CONFIG.JSON` checks one. Needs no PyTorch."""

import json
import sys

# Sections that do not change the values of a step: location, speed, length.
IGNORED = {"memory", "parallel", "eval", "record", "cuda", "checkpoint", "precision", "device", "threads", "seed"}
KNOWN = {
    "model": {"preset", "num_layers", "model_dim", "num_heads", "mlp_ratio", "vocab_size", "norm", "norm_parameters",
              "activation", "position", "rotary_base", "qk_norm", "tied_head", "biases", "logit_softcap",
              "attention_scale", "window", "zero_init_projections", "norm_embedding", "mix_first_embedding",
              "value_embeddings", "ngram_rows", "init_scale", "init_from"},
    "data": {"train", "val", "val_tokens", "vocabulary", "max_document_tokens", "document_mask", "allow_overlap"},
    "batch": {"sequence_length", "microbatch_tokens", "tokens_per_step"},
    "optimizers": {"clip", "clip_norm", "groups"},
    "schedule": {"steps", "warmup_steps", "decay", "cooldown_fraction", "final_lr_fraction"},
}
GROUP = {"type", "params", "lr", "weight_decay", "beta1", "beta2", "epsilon", "momentum", "momentum_start",
         "momentum_warmup_steps", "nesterov"}
# Keys without an implementation in the twin, with the only value that it accepts.
ONLY = {
    "model": {"max_ngram": 0},
    "data": {"rows": "stream", "shuffle": False},
    "schedule": {"stages": [], "lr_factor": 1, "final_steps": 0},
}
ONLY_OF_GROUP = {"cautious": False, "normuon": False, "every": 1, "weight_decay_by": "lr", "moments_dtype": "f32",
                 "weights_dtype": "f32", "momentum_cooldown_steps": 0, "polar_epsilon": 1e-6, "heads_per_matrix": 0,
                 "decays_unmoved": True}
UNUSED_OF_GROUP = {"normuon_lines"}  # keys of normuon, which is refused


def require(condition, message):
    if not condition:
        raise SystemExit(f"error: {message}")


def require_only(values, section, only):
    for key, value in only.items():
        require(values[key] == value, f"{section}.{key} {values[key]}: the twin has no {key}; set it to {json.dumps(value)}")


def read_config(path):
    """Reads the resolved config.json of a run, in which every key has a value. Refuses unsupported keys and values."""
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
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
