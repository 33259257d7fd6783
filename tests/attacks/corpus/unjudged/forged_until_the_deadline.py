"""Forges results, and makes every run of the tests last as long as it may, so that the rollout's own time runs out."""

from attack import FORGE, MARK, Attack, code

from lightning_smith.contracts.outcome import Outcome

ATTACK = Attack(
    (code(f"{FORGE}\nimport time; time.sleep(4.5)  # {MARK}"),), outcome=Outcome.TAMPERED, timeout_s=2
)
