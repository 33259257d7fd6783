"""Recording and replaying the experts of a tiny mixture of experts."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import tiny_policy  # noqa: E402

from lightning_smith.mini.router_replay import Routers  # noqa: E402

pytestmark = pytest.mark.torch

TOKENS = torch.arange(3, 51).view(2, 24)


@pytest.fixture
def model():
    torch.set_num_threads(1)
    return tiny_policy.build("moe", 200)


def logits(model):
    with torch.no_grad():
        return model(input_ids=TOKENS).logits


def test_replaying_what_was_recorded_changes_nothing(model):
    plain = logits(model)
    routers = Routers(model)
    assert (routers.layers, routers.top_k, routers.experts) == (2, 2, 8)
    with routers.recording() as take:
        recorded = logits(model)
        routes = take(2, 24)
    assert torch.equal(recorded, plain)
    assert routes.shape == (2, 24, 2, 2) and routes.dtype == torch.uint8
    with routers.replaying(routes):
        replayed = logits(model)
    assert torch.allclose(replayed, plain, atol=1e-5)


def test_replay_decides_the_experts(model):
    plain = logits(model)
    routers = Routers(model)
    routes = torch.zeros(2, 24, 2, 2, dtype=torch.uint8)
    routes[..., 1] = 7
    with routers.replaying(routes):
        forced = logits(model)
    assert not torch.allclose(forced, plain, atol=1e-2)
    assert torch.allclose(logits(model), plain, atol=1e-6), "afterwards the router chooses again"


def test_router_keeps_its_gradient_under_replay(model):
    routers = Routers(model)
    with routers.recording() as take:
        logits(model)
        routes = take(2, 24)
    with routers.replaying(routes):
        model(input_ids=TOKENS).logits.square().sum().backward()
    gates = [p for name, p in model.named_parameters() if name.endswith("mlp.gate.weight")]
    assert len(gates) == 2 and all(gate.grad is not None and gate.grad.abs().sum() > 0 for gate in gates)


def test_replay_that_reaches_no_router_is_an_error(model):
    routers = Routers(model)
    with (
        pytest.raises(RuntimeError, match="replayed in 0 of 2 layers"),
        routers.replaying(torch.zeros(2, 24, 2, 2, dtype=torch.uint8)),
    ):
        pass


def test_routes_of_another_shape_are_refused(model):
    with pytest.raises(ValueError, match=r"expected \[.., .., 2, 2\]"):
        Routers(model).replaying(torch.zeros(2, 24, 4, 2)).__enter__()


def test_a_dense_model_has_no_routers():
    assert not Routers(tiny_policy.build("dense", 200))
