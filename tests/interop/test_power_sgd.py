"""Groups of cohive and Python hivemind that average gradients by PowerSGD: they agree with what Python computes alone."""

import pytest

hivemind = pytest.importorskip("hivemind")

from power_sgd_peers import LIMIT, Alone, assert_close, gradients_of, swarm  # noqa: E402, F401


@pytest.mark.parametrize("rank", [1, 4, 32])
def test_a_mixed_group_computes_what_python_alone_does(swarm, rank):
    weights = [1.0, 2.0, 0.5]
    python = swarm.python(rank, 3)
    python.averager.state_sharing_priority = 1
    members = [python, swarm.cohive(rank, 3), swarm.cohive(rank, 3)]
    for newcomer in members[1:]:
        newcomer.load_factors()
    alone = Alone(python.factors(), 3)
    for seed in range(3):
        gradients = gradients_of(3, seed)
        expected = alone.round(gradients, weights)
        for wait in [member.start_step(own, weight) for member, own, weight in zip(members, gradients, weights)]:
            wait(LIMIT)
        for member, owed in zip(members, alone.owed):
            assert_close(member.averages(), expected)
            assert_close(member.residuals(), owed)


def test_a_python_newcomer_takes_the_factors_of_a_cohive_member(swarm):
    cohive = swarm.cohive(4, 2)
    python = swarm.python(4, 2, allow_state_sharing=False)
    before = python.factors()
    python.load_factors()
    factors = python.factors()
    assert all((new != old).all() for new, old in zip(factors, before))
    alone, gradients = Alone(factors, 2), gradients_of(2, 5)
    expected = alone.round(gradients, [1.0, 1.0])
    for wait in [member.start_step(own, 1.0) for member, own in zip((cohive, python), gradients)]:
        wait(LIMIT)
    assert_close(cohive.averages(), expected)
    assert_close(python.averages(), expected)
