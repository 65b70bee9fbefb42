"""The one loop: what is planned, remembered, regrouped, combined and attributed, in rounds worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import AgglomerativeClustering

from cflib import choices, methods
from cflib.arrays import flatten
from cflib.grid import Memory, State
from cflib.planning import plan
from cflib.protocol import Reply, Schedule
from cflib.server import RoundError, generic_model, serve, start, step
from tests.toy import Pull, weights

ZERO = weights(0, 0, 0)


def states(method, runtime, *, rounds, schedule=None, seed=0) -> list[State]:
    first = start(method, len(runtime.targets), lambda i: weights(i, i, i))
    return [first, *serve(method, runtime, first, rounds=rounds, seed=seed, schedule=schedule)]


def centre(state: State, cluster: int = 0) -> list[float]:
    return flatten(state.models[cluster]).tolist()


TWO_GROUPS = [(4, 1, 8), (4, -1, 8), (-4, 1, 8), (-4, -1, 8)]


def test_fedavg_weighs_clients_by_their_samples():
    runtime = Pull([(4, 0, 0), (0, 8, 0)], samples=[3, 1])
    assert centre(states(methods.fedavg(), runtime, rounds=1)[-1]) == [1.5, 1.0, 0.0]


def test_local_only_keeps_clients_apart():
    last = states(methods.local_only(), Pull(TWO_GROUPS), rounds=2)[-1]
    assert [centre(last, i) for i in range(4)] == [[3, 0.75, 6], [3, -0.75, 6], [-3, 0.75, 6], [-3, -0.75, 6]]


def test_oracle_trains_one_model_a_group():
    last = states(methods.oracle([0, 0, 1, 1]), Pull(TWO_GROUPS), rounds=1)[-1]
    assert [centre(last, 0), centre(last, 1)] == [[2, 0, 4], [-2, 0, 4]]


def test_an_oracle_with_too_few_labels_is_refused():
    with pytest.raises(ValueError, match="1 labels for 4 clients"):
        states(methods.oracle([0]), Pull(TWO_GROUPS), rounds=1)


@pytest.mark.parametrize("distance", ["kernels", "cosine"])
def test_louvain_cfl_finds_the_groups_by_other_distances(distance):
    last = states(methods.louvain_cfl("1nn", distance=distance), Pull(TWO_GROUPS), rounds=2)[-1]
    assert last.labels.tolist() == states(methods.louvain_cfl("1nn"), Pull(TWO_GROUPS), rounds=2)[-1].labels.tolist()
    assert last.shares.argmax(axis=1).tolist() == last.labels.tolist()


def test_louvain_cfl_finds_the_groups_in_the_first_round_and_gives_the_nearest_model():
    last = states(methods.louvain_cfl("1nn"), Pull(TWO_GROUPS), rounds=1)[-1]
    assert last.labels.tolist() == [0, 0, 1, 1]
    assert last.shares.tolist() == [[1, 0], [1, 0], [0, 1], [0, 1]]
    assert centre(last, 0) == [2, 0, 4]


def test_avg_gives_everyone_the_mean_of_communities_each_counting_the_same():
    runtime = Pull([(4, 1, 8), (4, -1, 8), (4, 0, 8), (-4, 0.5, 8), (-4, -0.5, 8)])
    last = states(methods.louvain_cfl("avg"), runtime, rounds=2)[-1]
    assert last.labels.tolist() == [0, 0, 0, 1, 1]
    assert (last.shares == 0.5).all()
    assert {tuple(flatten(job.models[0])) for job in runtime.asked[1]} == {(0, 0, 4)}


def test_weighted_nearest_gives_convex_shares():
    last = states(methods.louvain_cfl("wnn"), Pull(TWO_GROUPS), rounds=2)[-1]
    np.testing.assert_allclose(last.shares.sum(axis=1), 1)
    assert (last.shares[:2, 0] > last.shares[:2, 1]).all()


def test_as_published_wnn_starts_a_round_later():
    after = states(methods.louvain_cfl("wnn", arm="as_published"), Pull(TWO_GROUPS), rounds=2)
    assert (after[1].shares == 0.5).all()
    assert (after[2].shares != 0.5).all()


def test_communities_average_the_last_model_of_absent_members_too():
    runtime = Pull(TWO_GROUPS, gone={1: (1, 3)})
    after = states(methods.louvain_cfl("1nn"), runtime, rounds=2)
    stale = flatten(after[1].memory[1].description)
    fresh = flatten(after[2].memory[0].description)
    assert after[2].memory[1].round == 0
    np.testing.assert_allclose(centre(after[2], 0), (stale + fresh) / 2)


def test_a_client_never_seen_receives_the_mean_of_the_communities():
    last = states(methods.louvain_cfl("1nn"), Pull(TWO_GROUPS, joins={3: 9}), rounds=2)[-1]
    assert last.labels[3] == -1
    np.testing.assert_allclose(last.shares[3], 1 / len(last.models))


def test_late_is_avg_up_to_its_round_and_then_keeps_the_communities_apart():
    after = states(methods.late(round=3), Pull(TWO_GROUPS), rounds=4)
    avg = states(methods.louvain_cfl("avg"), Pull(TWO_GROUPS), rounds=3)
    for one, other in zip(after[:3], avg, strict=False):
        assert [flatten(m).tolist() for m in one.models] == [flatten(m).tolist() for m in other.models]
        np.testing.assert_array_equal(one.shares, other.shares)
    assert after[3].shares.tolist() == [[1, 0], [1, 0], [0, 1], [0, 1]]
    np.testing.assert_allclose(centre(after[3], 0), [2, 0, 7])
    np.testing.assert_allclose(centre(after[3], 1), [-2, 0, 7])
    np.testing.assert_allclose(centre(after[4], 0), [3, 0, 7.5])


@pytest.mark.parametrize(
    "method", [methods.ocfl("kmeans", trigger="algorithm_1", n_clusters=2), methods.briggs(round=1, threshold=0.2)]
)
def test_a_client_that_comes_after_the_shot_chooses_its_cluster(method):
    runtime = Pull([*TWO_GROUPS, (-4, 0, 8)], joins={4: 2})
    after = states(method, runtime, rounds=4)
    assert after[2].labels.tolist() == [0, 0, 1, 1, -1]
    assert np.isnan(after[2].shares[4]).all()
    assert after[3].labels[4] == 1
    assert {job.client: len(job.models) for job in runtime.asked[2]} == {0: 1, 1: 1, 2: 1, 3: 1, 4: 2}


def test_with_one_cluster_a_late_comer_belongs_to_it():
    after = states(methods.ifca(1), Pull([(1, 1, 1)] * 3, joins={2: 1}), rounds=2)
    assert after[1].labels.tolist() == [0, 0, -1]
    assert after[2].labels.tolist() == [0, 0, 0]


def test_agreement_finds_the_groups():
    assert states(methods.agreement_cfl(), Pull(TWO_GROUPS), rounds=1)[-1].labels.tolist() == [0, 0, 1, 1]


def test_flic_starts_its_clusters_from_the_common_model():
    targets = [(4, 0, 1), (4, 0, 1.2), (-4, 0, 1), (-4, 0, 1.2)]
    after = states(methods.flic(round=2, self_loops=False), Pull(targets), rounds=3)
    assert after[2].labels.tolist() == [0, 0, 1, 1]
    plain = states(methods.fedavg(), Pull(targets), rounds=2)[-1]
    assert centre(after[2], 0) == centre(after[2], 1) == centre(plain)
    assert centre(after[3], 0) != centre(after[3], 1)
    assert after[2].memory == {}


def test_flic_remembers_updates_of_clients_sampled_earlier_and_lets_the_unseen_choose():
    runtime = Pull([(4, 0, 0)] * 3 + [(-4, 0, 0)] * 3, gone={0: (1, 4, 5), 1: (0, 3, 5)})
    after = states(methods.flic(round=2, self_loops=False), runtime, rounds=4)
    assert after[1].known.tolist() == [0, 2, 3]
    assert np.isnan(after[1].matrix[5]).all()
    assert after[2].labels.tolist() == [0, 0, 0, 1, 1, -1]
    assert after[2].shares[5].tolist() == [0.5, 0.5]  # both clusters still hold the common model
    assert np.isnan(after[3].shares[5]).all()
    sent = {job.client: job for job in runtime.asked[3]}
    assert (len(sent[5].models), sent[5].choose) == (2, "accuracy")
    assert after[4].labels[5] == 1


def test_incremental_rows_equal_the_whole_matrix():
    runtime = Pull([(4, 1, 0), (3, -1, 0), (-4, 0, 1), (-3, 1, 2)], gone={0: (1,), 1: (0, 2), 2: (3,)})
    method = replace(methods.flic(round=9), name="watching")
    whole = replace(method, compare=lambda updates: method.compare(updates))
    for one, other in zip(states(method, runtime, rounds=4)[1:], states(whole, runtime, rounds=4)[1:], strict=True):
        np.testing.assert_allclose(one.matrix, other.matrix, atol=1e-12)


def test_ocfl_aggregates_by_cluster_in_the_round_of_the_shot():
    targets = [(4, 0, 0), (4, 1, 0), (4, 0, 1), (-4, 0, 0), (-4, 1, 0), (-4, 0, 1)]
    after = states(methods.ocfl("kmeans", trigger="algorithm_1", n_clusters=2), Pull(targets), rounds=1)[-1]
    assert after.clustered == 0
    assert after.labels.tolist() == [0, 0, 0, 1, 1, 1]
    np.testing.assert_allclose(centre(after, 0), [2, 1 / 6, 1 / 6])


def with_series(*temperatures: float) -> State:
    memory = {i: Memory(len(temperatures) - 1, None) for i in range(3)}
    return State(
        len(temperatures) - 1, (ZERO,), np.zeros(3, int), np.ones((3, 1)), (True,), ZERO, memory, watched=temperatures
    )


def fires(trigger, series) -> int | None:
    return next((t for t in range(len(series)) if trigger(with_series(*series[: t + 1]))), None)


@pytest.mark.parametrize(
    ("series", "rise", "fall"),
    [
        ((0.4353, 0.3323, 0.3938), 2, 1),  # MNIST non-overlapping balanced, 15 clients, from the authors' archive
        ((0.3571, 0.36, 0.35), 1, 2),
        ((0.5, 0.5, 0.5), None, None),
        ((0.5, 0.4, 0.3), None, 1),
    ],
)
def test_triggers_fire_where_the_paper_its_code_and_its_text_say(series, rise, fall):
    assert fires(choices.first_rise, series) == rise
    assert fires(choices.first_fall, series) == fall
    assert fires(choices.algorithm_1, series) == 0


def test_temperature_is_watched_until_the_shot_and_no_longer():
    targets = [(4, 0, 0), (4, 1, 0), (-4, 0, 0), (-4, 1, 0)]
    method = methods.ocfl("kmeans", trigger="first_fall", n_clusters=2)
    after = states(method, Pull(targets, rate=0.9), rounds=6)
    shot = next((s.round for s in after if s.clustered is not None), None)
    counts = [len(s.watched) for s in after]
    assert counts == [min(i, shot if shot is not None else 6) for i in range(7)]


def test_sattler_splits_recursively_into_federation_wide_ids_to_three_levels():
    rng = np.random.default_rng(0)
    corners = [(x, y) for x in (-8.0, 8.0) for y in (-2.0, 2.0)]
    targets = [(x, y, z + 0.01 * rng.normal()) for x, y in corners for z in (-0.5, 0.5) for _ in range(2)]
    method = methods.sattler(eps1=0.3, eps2=0.3, cooldown=0)
    last = states(method, Pull(targets), rounds=40)[-1]
    assert len(last.models) == 8
    assert last.labels.tolist() == [i // 2 for i in range(16)]


def test_sattler_waits_for_its_cooldown():
    method = methods.sattler(eps1=10, eps2=0.1, cooldown=3)
    assert [len(s.models) for s in states(method, Pull(TWO_GROUPS), rounds=5)] == [1, 1, 1, 1, 1, 2]


def test_briggs_clusters_once_by_average_linkage():
    after = states(methods.briggs(round=2, threshold=0.2), Pull(TWO_GROUPS), rounds=3)
    assert [len(s.models) for s in after] == [1, 1, 2, 2]
    assert after[2].labels.tolist() == [0, 0, 1, 1]


def test_as_published_briggs_takes_cosines_for_distances_and_joins_the_most_different():
    opposed = [(4, 0, 0), (4, 1, 0), (-4, 0, 0), (-4, 1, 0)]
    after = states(methods.briggs(round=1, threshold=0, arm="as_published"), Pull(opposed), rounds=1)[-1]
    assert after.labels.tolist() == [0, 1, 0, 1]


def test_as_published_briggs_drops_the_clients_beyond_25_clusters_for_good():
    runtime = Pull([(4, 0, 0)] * 30)  # all cosines are 1, which the published code takes for far apart
    after = states(methods.briggs(round=1, arm="as_published"), runtime, rounds=3)
    named = AgglomerativeClustering(metric="precomputed", linkage="average", distance_threshold=0.05, n_clusters=None)
    dropped = np.flatnonzero(named.fit(np.ones((30, 30))).labels_ >= 25)
    assert np.flatnonzero(after[1].labels < 0).tolist() == dropped.tolist()
    assert len(dropped) == 5 != len(set(dropped) & set(range(25, 30))), "scikit-learn does not number by client"
    assert [job.client for job in runtime.asked[2]] == np.setdiff1d(range(30), dropped).tolist()
    assert after[3].labels.tolist() == after[1].labels.tolist()


def test_ifca_clients_choose_and_models_specialise():
    method = methods.ifca(2)
    runtime = Pull([(2, 2, 2), (2, 2, 2), (-2, -2, -2)])
    after = states(method, runtime, rounds=3)
    assert after[0].labels.tolist() == [-1, -1, -1]
    assert after[-1].labels.tolist() == [1, 1, 0]
    assert np.isnan(after[-1].shares).all()


def test_bias_clustering_probes_first_then_trains_apart_from_the_initial_model():
    runtime = Pull(TWO_GROUPS)
    runtime.targets = [(4, 0, 2), (4, 0, 2.1), (-4, 0, -2), (-4, 0, -2.1)]
    after = states(methods.bias_clustering("dbscan", eps=0.2), runtime, rounds=2)
    assert {job.task for job in runtime.asked[0]} == {"describe"}
    assert after[1].labels.tolist() == [0, 0, 1, 1]
    assert centre(after[1], 0) == centre(after[1], 1) == [0, 0, 0]
    assert centre(after[2], 0) == pytest.approx([2, 0, 1.025])


def test_a_newcomer_joins_the_cluster_of_a_core_client_and_a_stranger_is_flagged_and_not_trained():
    targets = [(4, 0, 2), (4, 0, 2.1), (-4, 0, -2), (-4, 0, -2.1), (4, 0, 2.05), (9, 9, 50)]
    runtime = Pull(targets, joins={4: 2, 5: 2})
    after = states(methods.bias_clustering("dbscan", eps=0.2), runtime, rounds=5)
    assert after[2].labels.tolist() == [0, 0, 1, 1, -1, -1]
    assert after[3].labels.tolist() == [0, 0, 1, 1, 0, -1]
    assert after[3].flagged == {5}
    tasks = [{job.client: job.task for job in jobs} for jobs in runtime.asked]
    assert tasks[2][4] == tasks[2][5] == "describe"
    assert tasks[3][4] == "train"
    assert 5 not in tasks[3]
    assert len(after[-1].models) == 2


@pytest.mark.parametrize("algorithm", ["optics", "kmeans"])
def test_other_algorithms_admit_a_newcomer_to_the_nearest_client(algorithm):
    targets = [(4, 0, 2), (4, 0, 2.1), (-4, 0, -2), (-4, 0, -2.1), (0, 0, -9)]
    method = methods.bias_clustering(algorithm, n_clusters=2)
    after = states(method, Pull(targets, joins={4: 1}), rounds=2)[-1]
    assert after.labels.tolist() == [0, 0, 1, 1, 1]


def test_a_cluster_whose_members_are_all_absent_keeps_its_model_and_takes_them_back():
    runtime = Pull(TWO_GROUPS, gone={1: (2, 3), 2: (2, 3)})
    after = states(methods.oracle([0, 0, 1, 1]), runtime, rounds=4)
    assert centre(after[1], 1) == centre(after[2], 1) == centre(after[3], 1) != centre(after[4], 1)


def test_a_new_cluster_without_replies_inherits_its_parents_model():
    method = replace(methods.briggs(round=2, threshold=0.2), once=False)
    after = states(method, Pull(TWO_GROUPS, gone={1: (2, 3)}), rounds=2)
    assert after[2].labels.tolist() == [0, 0, 1, 1]
    assert centre(after[2], 1) == centre(after[1], 0)


def test_models_combined_from_memory_go_on_training_after_a_single_clustering():
    method = replace(methods.louvain_cfl("1nn"), when=partial(choices.at_round, round=2), once=True)
    after = states(method, Pull(TWO_GROUPS), rounds=5)
    assert after[-1].labels.tolist() == [0, 0, 1, 1]
    assert [centre(state)[0] for state in after[2:]] == sorted({centre(state)[0] for state in after[2:]})
    assert after[-1].shares.tolist() == [[1, 0], [1, 0], [0, 1], [0, 1]]


def test_of_a_share_of_the_clients_the_nearest_whole_number_trains_and_of_two_the_lower_as_with_flower():
    for clients, trained in {5: 2, 6: 3, 7: 3, 9: 4}.items():
        runtime = Pull([(1, 1, 1)] * clients)
        states(methods.fedavg(), runtime, rounds=1, schedule=Schedule(share=0.5))
        assert len(runtime.asked[0]) == trained == int(0.5 * clients)


def test_clients_with_equal_shares_are_sent_one_and_the_same_model():
    runtime = Pull(TWO_GROUPS)
    states(methods.louvain_cfl("avg"), runtime, rounds=2)
    assert len({id(job.models[0]) for job in runtime.asked[1]}) == 1


def test_a_split_takes_absent_members_along():
    method = methods.sattler(eps1=10, eps2=0.1, cooldown=0)
    after = states(method, Pull([*TWO_GROUPS, (-4, 0, 8)], gone={1: (4,)}), rounds=2)[-1]
    assert after.labels.tolist() == [0, 0, 1, 1, 1]


def test_a_round_without_clients_passes_and_changes_nothing():
    after = states(methods.louvain_cfl("1nn"), Pull(TWO_GROUPS, gone={0: (0, 1, 2, 3)}), rounds=2)
    assert centre(after[1]) == centre(after[0])
    assert after[2].labels.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("labels", [[0, 1], [-1, -1, -1, -1], [0.0, 1.0, 0.0, 1.0]])
def test_a_clusterer_that_returns_nonsense_is_named(labels):
    method = replace(methods.briggs(round=1), name="mine", cluster=lambda distances: np.array(labels))
    with pytest.raises(ValueError, match="the clusterer of mine returned"):
        states(method, Pull(TWO_GROUPS), rounds=1)


@pytest.mark.parametrize(
    ("fault", "reason"), [("nan", "not finite"), ("shape", "wrong shapes"), ("silent", "no reply")]
)
def test_a_client_with_a_bad_reply_is_excluded_and_named_and_the_run_goes_on(fault, reason):
    runtime = Pull(TWO_GROUPS, broken={(0, 1): fault})
    after = states(methods.oracle([0, 0, 1, 1]), runtime, rounds=2)
    assert after[1].excluded == {1: reason}
    assert centre(after[1], 0) == [2, 0.5, 4]
    assert after[2].excluded == {}


def test_a_wider_reply_takes_the_models_own_type_and_one_that_does_not_fit_is_left_out():
    state = start(methods.fedavg(), 2, lambda _: [np.zeros((1, 2), np.float32), np.zeros(1, np.float32)])
    jobs = plan(methods.fedavg(), state, np.arange(2), seed=0, schedule=Schedule())
    replies = [Reply(0, [np.full((1, 2), 1e300), np.zeros(1)]), Reply(1, [np.full((1, 2), 0.5), np.zeros(1)])]
    after = step(methods.fedavg(), state, jobs, replies, schedule=Schedule())
    assert after.excluded == {0: "not finite"}
    assert [array.dtype for array in after.models[0]] == [np.float32, np.float32]
    assert after.models[0][0].tolist() == [[0.5, 0.5]]


def test_a_round_without_any_usable_reply_says_so():
    runtime = Pull([(1, 1, 1)] * 2, broken={(1, 0): "nan", (1, 1): "silent"})
    with pytest.raises(RoundError, match=r"round 2: none of 2 .*'not finite'.*'no reply'"):
        states(methods.fedavg(), runtime, rounds=3)


def test_a_round_without_any_usable_reply_may_pass_if_asked():
    runtime = Pull([(1, 1, 1)] * 2, broken={(1, 0): "nan", (1, 1): "nan"})
    after = states(methods.fedavg(), runtime, rounds=3, schedule=Schedule(may_pass=True))
    assert after[2].models == after[1].models
    assert after[2].excluded == {0: "not finite", 1: "not finite"}
    assert after[3].excluded == {}


def test_a_clustering_whose_round_passed_without_a_reply_is_made_up_for():
    targets = [(1, 0, 0), (1, 0, 0), (-1, 0, 0), (-1, 0, 0)]
    runtime = Pull(targets, broken={(1, client): "nan" for client in range(4)})
    after = states(methods.flic(round=2), runtime, rounds=4, schedule=Schedule(may_pass=True))
    assert [state.clustered for state in after] == [None, None, None, 2, 2]
    assert after[-1].labels.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("share", "per", "counts"), [(0.5, "federation", 4), (0.5, "cluster", 4), (0.01, "cluster", 2)]
)
def test_sampling_draws_a_share_of_the_federation_or_of_each_cluster(share, per, counts):
    method = methods.oracle([0] * 6 + [1] * 2)
    state = start(method, 8, lambda i: ZERO)
    jobs = plan(method, state, np.arange(8), seed=3, schedule=Schedule(share=share, per=per))
    assert len(jobs) == counts
    assert [job.client for job in jobs] == sorted({job.client for job in jobs})
    if per == "cluster":
        assert {int(state.labels[job.client]) for job in jobs} == {0, 1}


def test_sampling_draws_no_fewer_than_the_least_where_there_are_as_many():
    method = methods.oracle([0] * 5 + [1] * 2 + [2])
    state = start(method, 8, lambda i: ZERO)
    jobs = plan(method, state, np.arange(8), seed=3, schedule=Schedule(share=0.5, per="cluster", least=2))
    assert np.bincount(state.labels[[job.client for job in jobs]]).tolist() == [2, 2, 1]
    with pytest.raises(ValueError, match="least is 0, expected at least 1 client"):
        Schedule(least=0)


def test_sampling_depends_on_seed_and_round_alone():
    method, schedule = methods.fedavg(), Schedule(share=0.3)
    state = start(method, 20, lambda i: ZERO)
    drawn = [
        [job.client for job in plan(method, replace(state, round=r), np.arange(20), seed=s, schedule=schedule)]
        for s, r in [(0, 0), (0, 0), (0, 1), (1, 0)]
    ]
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]
    assert drawn[0] != drawn[3]


def test_a_cluster_that_no_longer_improves_stops_and_the_other_trains_on():
    runtime = Pull([(1e-9, 0, 0), (0, 1e-9, 0), (4, 0, 0), (4, 0, 1)])
    schedule = Schedule(patience=2, min_delta=0.01)
    after = states(methods.oracle([0, 0, 1, 1]), runtime, rounds=4, schedule=schedule)
    assert after[3].stopped == {0}
    assert {job.client for job in runtime.asked[3]} == {2, 3}
    assert after[-1].shares[0].tolist() == [1, 0]


def test_clusters_may_have_their_own_training_settings():
    runtime = Pull(TWO_GROUPS)
    schedule = Schedule(settings={1: {"epochs": 7}})
    states(methods.oracle([0, 0, 1, 1]), runtime, rounds=1, schedule=schedule)
    states(methods.fedavg(), Pull(TWO_GROUPS), rounds=1, schedule=Schedule(settings={0: {"epochs": 7}}))
    assert [dict(job.settings) for job in runtime.asked[0]] == [{}, {}, {"epochs": 7}, {"epochs": 7}]


def test_a_generic_model_combines_chosen_clusters_by_their_sizes():
    last = states(methods.oracle([0, 1, 1, 1]), Pull([(4, 0, 0), (0, 4, 0), (0, 4, 0), (0, 4, 0)]), rounds=1)[-1]
    assert flatten(generic_model(last.models, last.labels, [0, 1])).tolist() == [0.5, 1.5, 0]
    assert flatten(generic_model(last.models, last.labels, [1])).tolist() == centre(last, 1)
    with pytest.raises(ValueError, match=r"clusters \[2\] asked for, there are 2"):
        generic_model(last.models, last.labels, [2])


ALL = {name: make for name, make in methods.ROWS.items() if name != "oracle"}


@pytest.mark.parametrize("name", ALL)
@given(seed=st.integers(0, 50))
@settings(max_examples=8)
def test_labels_are_a_partition_with_a_model_a_cluster_after_every_round(name, seed):
    rng = np.random.default_rng(seed)
    targets = rng.normal(size=(7, 3)) * 3
    quick = {"late": {"round": 2}, "flic": {"round": 2}, "briggs": {"round": 2}, "sattler": {"cooldown": 0, "eps1": 3}}
    method = methods.get(name, **quick.get(name, {}))
    runtime = Pull(targets.tolist(), gone={1: (int(rng.integers(7)),)})
    for state in states(method, runtime, rounds=5, schedule=Schedule(share=0.7), seed=seed):
        assert state.labels.shape == (7,)
        assert state.labels.max() < len(state.models)
        assert state.shares.shape == (7, len(state.models))
        rows = state.shares[~np.isnan(state.shares).any(axis=1)]
        np.testing.assert_allclose(rows.sum(axis=1), 1)
        if method.models is None:
            used = np.unique(state.labels[state.labels >= 0])
            assert used.tolist() == list(range(len(state.models)))


def test_the_table_lists_every_method_with_its_six_choices():
    table = {row["method"]: row for row in methods.table()}
    assert set(table) == set(methods.ROWS)
    assert table["flic"]["when"] == "at_round(round=200)"
    assert table["ifca"]["cluster"] == "chosen by the client"
    assert all(len(row) == 7 for row in table.values())


def test_unknown_names_are_refused_with_what_there_is():
    for call, message in [
        (partial(methods.get, "flick"), "no method 'flick': there are fedavg"),
        (partial(methods.louvain_cfl, "2nn"), "give is '2nn'"),
        (partial(methods.louvain_cfl, distance="euclid"), "distance is 'euclid'"),
        (partial(methods.bias_clustering, "birch"), "algorithm is 'birch'"),
        (partial(methods.ocfl, "hdbscan", trigger="now"), "first_rise"),
        (partial(methods.ocfl, arm="published"), "arm is 'published'"),
        (partial(Schedule, share=0), "share is 0"),
        (partial(Schedule, per="town"), "per is 'town'"),
        (partial(Schedule, patience=0), "patience is 0"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pool": "memroy"}, "pool is 'memroy', expected one of replies, memory"),
        ({"choose": "los"}, "choose is 'los', expected one of only"),
        ({"models": 0}, "models is 0"),
        ({"when": None}, "has cluster but not when"),
        ({"cluster": None}, "has when but not cluster"),
        ({"describe": None}, "has compare but nothing to describe clients: set describe"),
        ({"describe": None, "compare": None}, "has cluster but nothing to describe"),
        ({"compare": None, "watch": float}, "watches the matrix"),
    ],
)
def test_a_row_that_does_not_fit_together_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        replace(methods.briggs(round=1), **change)


def test_settings_that_a_method_does_not_take_are_named_with_those_it_does():
    with pytest.raises(ValueError, match=r"flic does not take rounds: its settings are .*round"):
        methods.get("flic", rounds=3)


def test_descriptions_that_are_no_models_are_not_combined():
    method = replace(methods.louvain_cfl("avg"), describe=choices.update, compare=None, cluster=None, when=None)
    with pytest.raises(ValueError, match=r"no model: set describe=choices\.model"):
        states(method, Pull(TWO_GROUPS), rounds=1)


def test_of_two_replies_of_a_client_the_first_counts():
    state = start(methods.fedavg(), 2, lambda i: ZERO)
    jobs = plan(methods.fedavg(), state, np.arange(2), seed=0, schedule=Schedule())
    replies = [Reply(0, weights(1, 1, 1)), Reply(1, weights(3, 3, 3)), Reply(0, weights(np.nan, 0, 0))]
    after = step(methods.fedavg(), state, jobs, replies, schedule=Schedule())
    assert after.excluded == {}
    assert centre(after) == [2, 2, 2]


def test_a_loss_that_is_no_number_does_not_keep_a_cluster_from_stopping():
    schedule = Schedule(patience=2)
    state = start(methods.fedavg(), 1, lambda i: ZERO)
    for loss in (np.nan, 1.0, 1.0, 1.0):
        assert not state.stopped
        jobs = plan(methods.fedavg(), state, np.arange(1), seed=0, schedule=schedule)
        state = step(methods.fedavg(), state, jobs, [Reply(0, ZERO, scores={"loss": loss})], schedule=schedule)
    assert state.stopped == {0}
    assert state.losses == ((1.0, 1.0, 1.0),)


def test_statistics_and_step_counters_dwarf_the_weights_in_the_published_description():
    from cflib.protocol import Reply

    reply = Reply(0, [np.ones(4), np.ones(2), np.ones(2)], scores={"steps": 102.0})
    received, trainable = [np.zeros(4), np.zeros(2), np.zeros(2)], (True, False, False)
    assert choices.update(reply, received, trainable).tolist() == [1, 1, 1, 1]
    assert choices.update_with_statistics(reply, received, trainable).tolist() == [1] * 8 + [102]
