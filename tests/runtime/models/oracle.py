"""The mathematics of the text model, written out once more in float64.

Shares no code with the package. It goes token by token and head by head, and takes its weights by
logical name.
"""

from __future__ import annotations

from math import sqrt

import numpy as np


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def rms(x, eps):
    return x / np.sqrt(np.mean(x * x) + eps)


def oracle_logits(config: dict, weights: dict[str, np.ndarray], ids: list[int]) -> np.ndarray:
    w = {name: values.astype(np.float64) for name, values in weights.items()}
    eps = config["rms_norm_eps"]
    x = [w["text/token_embedding"][token] for token in ids]
    for layer, kind in enumerate(config["layer_types"]):
        p = f"text/layers/{layer}/"
        h = [rms(row, eps) * (1 + w[p + "input_norm"]) for row in x]
        mixer = oracle_attention if kind == "full_attention" else oracle_delta_net
        x = [row + mixed for row, mixed in zip(x, mixer(config, w, p, h), strict=True)]
        for t, row in enumerate(x):
            h_t = rms(row, eps) * (1 + w[p + "post_attention_norm"])
            if "num_experts" in config:
                x[t] = row + oracle_mixture(config, w, p + "moe/", h_t)
            else:
                x[t] = row + oracle_mlp(w, p + "mlp/", h_t)
    final = [rms(row, eps) * (1 + w["text/final_norm"]) for row in x]
    return np.array([w["text/output_head"] @ row for row in final])


def oracle_mlp(w: dict[str, np.ndarray], p: str, h: np.ndarray) -> np.ndarray:
    gate = w[p + "gate"] @ h
    result: np.ndarray = w[p + "down"] @ (gate * sigmoid(gate) * (w[p + "up"] @ h))
    return result


def oracle_mixture(config: dict, w: dict[str, np.ndarray], p: str, h: np.ndarray) -> np.ndarray:
    """Every expert runs; those that are not chosen count nothing."""
    probabilities = np.exp(w[p + "router"] @ h)
    probabilities /= probabilities.sum()
    order = sorted(range(config["num_experts"]), key=lambda expert: -probabilities[expert])
    chosen = order[: config["num_experts_per_tok"]]
    total: np.ndarray = sigmoid(w[p + "shared_score"] @ h) * oracle_mlp(w, p + "shared/", h)
    for expert in range(config["num_experts"]):
        count = probabilities[expert] / probabilities[chosen].sum() if expert in chosen else 0
        total = total + count * oracle_mlp(w, f"{p}experts/{expert}/", h)
    return total


def oracle_rotate(config: dict, head: np.ndarray, position: int) -> np.ndarray:
    """Text positions are equal on all axes, so that the sections do not matter."""
    rope = config["rope_parameters"]
    rotary = int(config["head_dim"] * rope["partial_rotary_factor"])
    result = head.copy()
    for r in range(rotary // 2):
        angle = position * rope["rope_theta"] ** (-2 * r / rotary)
        a, b = head[r], head[r + rotary // 2]
        result[r] = a * np.cos(angle) - b * np.sin(angle)
        result[r + rotary // 2] = b * np.cos(angle) + a * np.sin(angle)
    return result


def oracle_attention(config: dict, w: dict, p: str, h: list[np.ndarray]) -> list[np.ndarray]:
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    d, eps = config["head_dim"], config["rms_norm_eps"]
    p += "attention/"
    keys, values, outputs = [], [], []
    for t, row in enumerate(h):
        q = (w[p + "query"] @ row).reshape(heads, d)
        k = (w[p + "key"] @ row).reshape(kv_heads, d)
        keys.append(
            [oracle_rotate(config, rms(head, eps) * (1 + w[p + "key_norm"]), t) for head in k]
        )
        values.append((w[p + "value"] @ row).reshape(kv_heads, d))
        mixed = []
        for j in range(heads):
            query = oracle_rotate(config, rms(q[j], eps) * (1 + w[p + "query_norm"]), t)
            kv = j // (heads // kv_heads)
            scores = np.array([keys[s][kv] @ query / sqrt(d) for s in range(t + 1)])
            probabilities = np.exp(scores - scores.max())
            probabilities /= probabilities.sum()
            mixed.append(sum(probabilities[s] * values[s][kv] for s in range(t + 1)))
        gated = np.concatenate(mixed) * sigmoid(w[p + "gate"] @ row)
        outputs.append(w[p + "output"] @ gated)
    return outputs


def oracle_delta_net(config: dict, w: dict, p: str, h: list[np.ndarray]) -> list[np.ndarray]:
    key_heads, value_heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    dk, dv = config["linear_key_head_dim"], config["linear_value_head_dim"]
    taps, eps = config["linear_conv_kernel_dim"], config["rms_norm_eps"]
    p += "gdn/"
    states = np.zeros((value_heads, dv, dk))
    rows, outputs = [], []
    for row in h:
        rows.append(np.concatenate([w[p + role] @ row for role in ("query", "key", "value")]))
        recent = [rows[-1 - back] if back < len(rows) else 0 * rows[0] for back in range(taps)]
        c = sum(w[p + "convolution"][taps - 1 - back] * recent[back] for back in range(taps))
        c = c * sigmoid(c)
        q, k, v = np.split(c, [key_heads * dk, 2 * key_heads * dk])
        z = (w[p + "z"] @ row).reshape(value_heads, dv)
        softplus = np.log1p(np.exp(w[p + "a_projection"] @ row + w[p + "dt_bias"]))
        g = -np.exp(w[p + "a_log"]) * softplus
        beta = sigmoid(w[p + "b_projection"] @ row)
        mixed = []
        for j in range(value_heads):
            head = j // (value_heads // key_heads)
            q_j = q.reshape(key_heads, dk)[head]
            k_j = k.reshape(key_heads, dk)[head]
            q_j = q_j / np.sqrt(q_j @ q_j + 1e-6)
            k_j = k_j / np.sqrt(k_j @ k_j + 1e-6)
            S = np.exp(g[j]) * states[j]
            S = S + np.outer(beta[j] * (v.reshape(value_heads, dv)[j] - S @ k_j), k_j)
            states[j] = S
            o = S @ q_j / sqrt(dk)
            mixed.append(rms(o, eps) * w[p + "norm"] * z[j] * sigmoid(z[j]))
        outputs.append(w[p + "output"] @ np.concatenate(mixed))
    return outputs
