"""Groups of both kinds that average by PowerSGD and lose a member in one of the phases."""

import pytest

hivemind = pytest.importorskip("hivemind")

from hivemind.optim.power_sgd_averager import PowerSGDGradientAverager  # noqa: E402

from power_sgd_peers import LIMIT, Alone, assert_close, gradients_of, swarm  # noqa: E402, F401


def lost_in(phase):
    """A member that is lost when this phase begins."""

    async def run(self, tensors, group_info, group_id=None, **kwargs):
        if group_id.endswith(phase.encode()):
            raise RuntimeError("lost")
        return await PowerSGDGradientAverager._run_allreduce_inplace_(self, tensors, group_info, group_id, **kwargs)

    # Its name is part of the protocol.
    return type("PowerSGDGradientAverager", (PowerSGDGradientAverager,), {"_run_allreduce_inplace_": run})


@pytest.mark.parametrize("phase", ["P", "Q"])
@pytest.mark.parametrize("rank", [1, 4, 32])
def test_a_lost_sender_is_left_out_of_that_phase_by_both_kinds(swarm, rank, phase):
    python = swarm.python(rank, 4)
    python.averager.state_sharing_priority = 1
    members = [python, swarm.cohive(rank, 4), swarm.cohive(rank, 4)]
    for newcomer in members[1:]:
        newcomer.load_factors()
    alone, gradients = Alone(python.factors(), 4), gradients_of(4, 7)
    lost = swarm.python(rank, 4, kind=lost_in("PHASE_" + phase), client=True)
    lost.load_factors()
    waits = [member.start_step(own, 1.0) for member, own in zip([*members, lost], gradients)]
    rest = [1.0, 1.0, 1.0, 0.0]
    expected = alone.round(gradients, rest if phase == "P" else [1.0] * 4, in_q=rest)
    for wait in waits[:3]:
        wait(LIMIT)
    for member, owed in zip(members, alone.owed):
        assert_close(member.averages(), expected)
        assert_close(member.residuals(), owed)


@pytest.mark.parametrize("phase", ["P", "Q"])
def test_nothing_is_lost_with_a_reducer_that_is_lost(swarm, phase):
    members = [swarm.python(4, 4), swarm.cohive(4, 4), swarm.cohive(4, 4)]
    lost = swarm.python(4, 4, kind=lost_in("PHASE_" + phase))
    gradients = gradients_of(4, 7)
    waits = [member.start_step(own, 1.0) for member, own in zip([*members, lost], gradients)]
    for wait in waits[:3]:
        wait(LIMIT)
    for member, own in zip(members, gradients):
        averages = member.averages()
        for index, residual in zip((1, 3), member.residuals()):
            assert_close([averages[index].ravel() + residual], [own[index]])
