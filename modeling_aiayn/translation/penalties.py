"""Section 6.1's length penalty, its siblings, and the coverage penalty (Wu et al. 2016)."""

from torch import Tensor

from .options import SearchOptions


def length_divisor(length: int, alpha: float, normalization: str) -> float:
    """What a hypothesis's log-probability is divided by.

    Args:
        length: Tokens, `</s>` counted, n.
        alpha: The exponent.
        normalization: "gnmt", ((5 + n) / 6)^alpha, Wu et al. 2016, equation 14; "power", n^alpha.

    Returns:
        The divisor.
    """
    return ((5 + length) / 6) ** alpha if normalization == "gnmt" else float(length) ** alpha


def normalized_score(
    log_probability: float, length: int, options: SearchOptions, coverage: float = 0.0
) -> float:
    """What hypotheses are ranked by.

    Args:
        log_probability: Sum over the hypothesis's tokens, in nats.
        length: Tokens, `</s>` counted.
        options: Length and coverage penalties.
        coverage: As `coverage_score` gives it.

    Returns:
        log P / length penalty + beta * coverage.
    """
    divisor = length_divisor(length, options.length_penalty, options.length_normalization)
    return log_probability / divisor + options.coverage_penalty * coverage


def coverage_score(coverage: Tensor, source_mask: Tensor) -> Tensor:
    """Wu et al. 2016, equation 14: sum over the source of log(min(attention received, 1)).

    Args:
        coverage: Attention that each source token got from all target tokens, [N, k, S].
        source_mask: 1 for real source tokens, [N, S].

    Returns:
        At most 0, [N, k]; 0 where every source token got a full share.
    """
    received = coverage.float().clamp(min=1e-9, max=1.0).log()
    return received.masked_fill(source_mask[:, None] == 0, 0.0).sum(-1)
