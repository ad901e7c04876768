"""The optimizers of train/optim in PyTorch: torch's fused AdamW, and a Muon of our own."""

import fnmatch
import math

import torch

# Polar Express (Amsel et al. 2025), five iterations: X <- aX + (bA + cA^2)X, A = XX^T.
COEFFICIENTS = ((8.156554524902461, -22.48329292557795, 15.878769915207462),
                (4.042929935166739, -2.808917465908714, 0.5000178451051316),
                (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
                (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
                (2.3465413258596377, -1.7097828382687081, 0.42323551169305323))


def polar_express(x):
    """Orthogonal polar factor of each matrix of x (n, R, C)."""
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (1.02 * torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True) + 1e-6)
    for a, b, c in COEFFICIENTS:
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Updates parameters of one shape as one batch of matrices; `qkv` is three of them."""

    def __init__(self, named, group, dtype, compiled):
        self.dtype, self.momentum = dtype, 0.0
        self.polar = torch.compile(polar_express, dynamic=False) if compiled else polar_express
        batches = {}
        for name, p in named:
            batches.setdefault((p.shape, 3 if name.endswith("qkv.weight") else 1), []).append(p)
        super().__init__([{"params": params, "matrices": matrices} for (_, matrices), params in batches.items()],
                         dict(lr=group["lr"], weight_decay=group["weight_decay"], nesterov=group["nesterov"]))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            params, lr = group["params"], group["lr"]
            rows, cols = params[0].shape[0] // group["matrices"], params[0].shape[1]
            grad = torch.stack([p.grad for p in params])
            average = self.state[params[0]].setdefault("momentum", torch.zeros_like(grad))
            average.lerp_(grad, 1 - self.momentum)
            update = grad.lerp(average, self.momentum) if group["nesterov"] else average
            update = self.polar(update.view(-1, rows, cols).to(self.dtype)).float()
            torch._foreach_mul_(params, 1 - lr * group["weight_decay"])
            torch._foreach_add_(params, list(update.view(grad.shape).unbind()), alpha=-lr * math.sqrt(max(1.0, rows / cols)))


class Optimizers:
    """All groups of a config. A parameter belongs to the first matching group."""

    def __init__(self, config, model, dtype, compiled):
        self.config, self.parameters, self.groups = config, list(model.parameters()), []
        left = dict(model.named_parameters())
        for group in config["optimizers"]["groups"]:
            named = [(name, p) for name, p in left.items() if any(fnmatch.fnmatchcase(name, a) for a in group["params"])]
            for name, _ in named:
                del left[name]
            if group["type"] == "muon":
                optimizer = Muon(named, group, dtype, compiled)
            else:
                optimizer = torch.optim.AdamW([p for _, p in named], betas=(group["beta1"], group["beta2"]),
                                              eps=group["epsilon"], weight_decay=group["weight_decay"], fused=True)
            self.groups.append((optimizer, group))
        if left:
            raise SystemExit(f"error: no optimizer group takes {', '.join(left)}")

    def step(self, step):
        clip = self.config["optimizers"]["clip"]
        if clip > 0:
            norm = float(self.config["optimizers"]["clip_norm"])
            torch.nn.utils.clip_grad_norm_(self.parameters, clip, norm_type=norm)
        factor = learning_rate_factor(self.config["schedule"], step)
        for optimizer, group in self.groups:
            for inner in optimizer.param_groups:
                inner["lr"] = group["lr"] * factor
            if group["type"] == "muon":
                share = min(1.0, step / group["momentum_warmup_steps"]) if group["momentum_warmup_steps"] else 1.0
                optimizer.momentum = group["momentum_start"] + share * (group["momentum"] - group["momentum_start"])
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)


def learning_rate_factor(schedule, step):
    """train/config/lr_schedule.h; steps after the last one repeat it."""
    step = min(step, schedule["steps"] - 1)
    warm_up = min(1.0, (step + 1) / schedule["warmup_steps"]) if schedule["warmup_steps"] else 1.0
    cooldown, left = schedule["cooldown_fraction"] * schedule["steps"], schedule["steps"] - step
    if schedule["decay"] == "constant" or cooldown <= 0 or left >= cooldown:
        return warm_up
    share = left / cooldown
    shape = 0.5 - 0.5 * math.cos(math.pi * share) if schedule["decay"] == "cosine" else share
    return warm_up * (schedule["final_lr_fraction"] + (1 - schedule["final_lr_fraction"]) * shape)
