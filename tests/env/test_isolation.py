"""What an `EnvPool` promises: a broken environment costs its own episode, and nothing leaks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from ragen.env import isolation
from ragen.env.isolation import EnvCrashed, EnvError, EnvPool, EnvRaised, EnvTimeout

# Worker processes import the environments by name, and `tests` may be anybody's package there.
HERE = Path(__file__).parent
sys.path.append(str(HERE))
import hostile_env  # noqa: E402

MODES = ("inline", "thread", "process")
LIMIT_S = 0.5
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}


def make_pool(isolate="process", factory=hostile_env.HostileEnv, workers=2, timeout_s=LIMIT_S):
    return EnvPool(factory, tag="Hostile", isolate=isolate, workers=workers, timeout_s=timeout_s)


@pytest.fixture(scope="module")
def shared_pools():
    """One pool per mode, for tests after which it is as good as new."""
    pools = {mode: make_pool(mode, timeout_s=5.0) for mode in MODES}
    yield pools
    for pool in pools.values():
        pool.close()


@pytest.fixture(scope="module")
def hurt_pool():
    """A process pool with a short limit, for tests that lose workers; compare its counters with those at the start."""
    with contextlib.closing(make_pool()) as pool:
        yield pool


@pytest.fixture
def process_pool():
    with contextlib.closing(make_pool()) as pool:
        yield pool


async def episode(pool, *actions, seed=1, luck=None):
    """The results of `reset` and of each action."""
    async with pool.lease() as client:
        return [await client.reset(seed, luck), *[await client.step(action) for action in actions]]


async def failure(pool, *actions, **kwargs):
    """The error that ends such an episode."""
    with pytest.raises(EnvError) as caught:
        await episode(pool, *actions, **kwargs)
    return caught.value


@pytest.fixture
def children():
    """Lists the processes below this one that were started since the test began."""
    before = set(psutil.Process().children(recursive=True))
    return lambda: [process for process in psutil.Process().children(recursive=True) if process not in before]


def servers(processes):
    found = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):  # a killed worker may be collected while we look
            if process.ppid() == os.getpid():
                found.append(process)
    return found


def gone(pids, limit_s):
    """True once none of the processes runs (a zombie that nobody collects does not run)."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        alive = [pid for pid in pids if psutil.pid_exists(pid)]
        with contextlib.suppress(psutil.NoSuchProcess):
            if all(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE for pid in alive):
                return True
        time.sleep(0.02)
    return False


# --- what works -------------------------------------------------------------------------------------------------------


def test_equal_seeds_give_equal_episodes_in_every_mode(shared_pools):
    def play(mode, seed, luck):
        (first, _), *steps = asyncio.run(episode(shared_pools[mode], "Add", "ADD", "add", seed=seed, luck=luck))
        return first, [(s.observation, s.reward, s.terminated, s.truncated) for s in steps]

    episodes = {mode: [play(mode, seed, luck) for seed in (1, 2) for luck in (None, 5, 6)] for mode in MODES}
    assert episodes["inline"] == episodes["thread"] == episodes["process"]
    assert len({str(e) for e in episodes["process"]}) == 6  # seed and luck both arrive


@pytest.mark.parametrize("mode", MODES)
def test_every_call_of_the_contract_arrives(shared_pools, mode):
    async def play():
        async with shared_pools[mode].lease() as client:
            description = await client.describe()
            assert description.instruction == "Count from 0."
            assert description.actions[:2] == ("Add", "Raise")
            observation, info = await client.reset(1)
            assert (info["pid"] == os.getpid()) == (mode != "process")
            assert await client.render() == observation
            assert (await client.render("rgb_array")).shape == (2, 2, 3)
            assert await client.oracle_action() == "Add"
            drawn = [await client.random_action(seed) for seed in range(40)]
            assert drawn == [await client.random_action(seed) for seed in range(40)]
            assert 5 < len(set(drawn)) and set(drawn) <= set(description.actions)

    asyncio.run(play())


@pytest.mark.parametrize("mode", MODES)
def test_numpy_scalars_come_back_as_python_values(shared_pools, mode):
    step = asyncio.run(episode(shared_pools[mode], "NumPy"))[1]
    assert (step.info["scalar"], step.info["nested"]) == (3, [True, (0.5,)])
    assert type(step.info["scalar"]) is int and type(step.info["nested"][0]) is bool
    assert type(next(key for key in step.info if key == "key")) is str
    assert type(step.reward) is float and type(step.terminated) is bool


def test_a_large_array_comes_back_whole(shared_pools):
    picture = asyncio.run(episode(shared_pools["process"], "Big"))[1].info["picture"]
    assert picture.shape == (512, 512, 3) and (picture == 7).all()


def test_any_text_is_an_action_where_none_are_named():
    with contextlib.closing(make_pool("inline", hostile_env.FreeTextEnv)) as pool:
        assert asyncio.run(episode(pool, "Click [Buy]"))[1].observation == "Click [Buy]"


def test_random_actions_need_names_or_the_environments_own_method():
    rng = np.random.default_rng(0)
    assert hostile_env.FreeTextEnv().random_action(rng) is None
    assert hostile_env.HostileEnv().random_action(rng) in hostile_env.HostileEnv().action_lookup()


def test_a_sound_environment_is_used_again(shared_pools):
    async def two():
        return [await episode(shared_pools["process"], "Add", "Add") for _ in range(2)]

    first, second = asyncio.run(two())
    assert first[0][1]["pid"] == second[0][1]["pid"]
    assert second[2].info["steps_ever"] == first[2].info["steps_ever"] + 2


@pytest.mark.parametrize("mode", MODES)
def test_leases_wait_for_a_free_worker_and_never_exceed_them(shared_pools, mode):
    pool, most = shared_pools[mode], 0

    async def one(seed):
        nonlocal most
        async with pool.lease() as client:
            await client.reset(seed)
            for _ in range(5):
                await client.step("Add")
                await asyncio.sleep(0)
                most = max(most, pool.live_workers)

    async def many():
        await asyncio.gather(*[one(seed) for seed in range(20)])

    asyncio.run(many())
    assert 1 <= most <= pool.workers


def test_a_cancelled_waiter_leaves_the_worker_to_the_next(shared_pools):
    pool = shared_pools["inline"]

    async def scenario():
        async with pool.lease(), pool.lease():
            waiters = [asyncio.ensure_future(episode(pool, "Add")) for _ in range(3)]
            await asyncio.sleep(0)
            waiters[0].cancel()
        waiters[1].cancel()  # the worker was handed to it just now
        return await asyncio.wait_for(waiters[2], 5)

    assert len(asyncio.run(scenario())) == 2


# --- what breaks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("action", "message"),
    [
        ("Raise", "RuntimeError: the board broke"),
        ("Exit", "SystemExit: 3"),
        ("Shape", "expected 5, got 3"),
        ("Fly", "no action is called 'Fly'; known: Add, Raise"),
    ],
)
def test_what_is_raised_ends_its_own_episode_only(shared_pools, mode, action, message):
    pool = shared_pools[mode]

    async def scenario():
        async with pool.lease() as client:
            await client.reset(7)
            with pytest.raises(EnvRaised) as caught:
                await client.step(action)
            with pytest.raises(EnvError, match="an earlier call of this episode failed"):
                await client.step("Add")
        return caught.value, await episode(pool, "Add")

    error, after = asyncio.run(scenario())
    assert (error.tag, error.seed, error.call) == ("Hostile", 7, "step")
    assert message in str(error) and "Traceback" in error.cause
    assert after[1].info["steps_ever"] == 1  # another instance: nothing of the failed episode is left


def test_the_traceback_names_the_environments_line(shared_pools):
    error = asyncio.run(failure(shared_pools["process"], "Raise"))
    assert "hostile_env.py" in error.cause and "do_raise" in error.cause
    assert pickle.loads(pickle.dumps(error)).cause == error.cause  # errors travel between Ray actors


def test_a_failing_reset_names_its_seed(shared_pools):
    error = asyncio.run(failure(shared_pools["process"], seed=-3))
    assert (error.seed, error.call) == (-3, "reset") and "no level for seed -3" in str(error)


def test_an_answer_that_cannot_be_pickled_is_said_to_be_so(shared_pools):
    error = asyncio.run(failure(shared_pools["process"], "Lambda"))
    assert isinstance(error, EnvRaised) and "returned from step what cannot be pickled" in str(error)
    assert asyncio.run(episode(shared_pools["thread"], "Lambda"))[1].info["f"]() is None


@pytest.mark.parametrize(("action", "how"), [("Die", "exit code 7"), ("Segfault", "killed by SIGSEGV")])
def test_a_crash_ends_its_own_episode_only(hurt_pool, action, how):
    crashes = hurt_pool.crashes

    async def scenario():
        return await asyncio.gather(failure(hurt_pool, action), episode(hurt_pool, *["Add"] * 50))

    error, other = asyncio.run(scenario())
    assert isinstance(error, EnvCrashed) and how in str(error) and hurt_pool.crashes == crashes + 1
    assert len(other) == 51
    assert asyncio.run(episode(hurt_pool, "Add"))[1].info["steps_ever"] > 0


@pytest.mark.parametrize("action", ["Sleep", "Spin"])
def test_a_hung_process_is_killed_and_replaced(hurt_pool, action):
    hangs, crashes = hurt_pool.hangs, hurt_pool.crashes

    async def scenario():
        (_, info), _ = await episode(hurt_pool, "Add")
        start = time.monotonic()
        error = await failure(hurt_pool, action)
        elapsed_s = time.monotonic() - start
        (_, info_after), step = await episode(hurt_pool, "Add")
        return info["pid"], error, elapsed_s, info_after["pid"], step

    pid, error, elapsed_s, pid_after, step = asyncio.run(scenario())
    assert isinstance(error, EnvTimeout) and (hurt_pool.hangs, hurt_pool.crashes) == (hangs + 1, crashes)
    assert "no answer within 0.5 s" in str(error) and "custom_envs.Hostile.step_timeout_s" in str(error)
    assert LIMIT_S <= elapsed_s < LIMIT_S + 2
    assert pid_after != pid and step.info["steps_ever"] == 1
    assert not psutil.pid_exists(pid)  # collected, not even a zombie


@pytest.mark.parametrize("mode", ["thread", "process"])
def test_an_answer_in_time_counts_though_the_loop_was_late_to_read_it(mode):
    async def scenario():
        async with pool.lease() as client:
            await client.reset(1)
            nap = asyncio.ensure_future(client.step("Nap"))  # 0.2 s
            await asyncio.sleep(0.01)
            time.sleep(LIMIT_S + 0.1)  # noqa: ASYNC251  the loop itself is held up
            await nap
            await client.step("Add")

    with contextlib.closing(make_pool(mode)) as pool:
        asyncio.run(scenario())
        assert pool.hangs == 0


@pytest.mark.parametrize("count", [24, pytest.param(200, marks=pytest.mark.wide)])
def test_hangs_leave_everything_flat(children, count):
    workers, host = 4, psutil.Process()

    def state():
        memory_mb = [process.memory_info().rss / 2**20 for process in (host, *servers(children()))]
        return host.num_fds(), host.num_threads(), memory_mb

    async def hangs(pool, count):
        errors = [failure(pool, ("Sleep", "Spin")[i % 2], seed=i) for i in range(count)]
        for i, future in enumerate(asyncio.as_completed(errors)):
            assert isinstance(await future, EnvTimeout)
            assert pool.live_workers <= workers
            assert i % 16 or len(children()) <= workers + 1  # looking costs more than a hang

    async def scenario(pool):
        await hangs(pool, 8)
        fds, threads, memory_mb = state()
        await hangs(pool, count - 8)
        fds_after, threads_after, memory_after_mb = state()
        assert (fds_after, threads_after) == (fds, threads)
        assert len(memory_after_mb) == len(memory_mb) == 2  # this process and the pool's server
        assert all(after < before + 6 for after, before in zip(memory_after_mb, memory_mb, strict=True))

    with contextlib.closing(make_pool(workers=workers, timeout_s=0.05)) as pool:
        asyncio.run(scenario(pool))
        assert (pool.hangs, pool.crashes) == (count, 0)


def test_what_a_worker_started_dies_with_it(hurt_pool):
    async def scenario():
        async with hurt_pool.lease() as client:
            await client.reset(1)
            child = (await client.step("Child")).info["child"]
            assert psutil.pid_exists(child)
            with pytest.raises(EnvCrashed):
                await client.step("Die")
            return child

    assert gone([asyncio.run(scenario())], limit_s=2)


def test_a_cancelled_call_costs_its_worker(process_pool, children):
    async def scenario():
        running = asyncio.ensure_future(episode(process_pool, "Add", "Spin"))
        while process_pool.live_workers == 0 or len(children()) < 2:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)  # it spins by now
        (worker,) = set(children()) - set(servers(children()))
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert process_pool.live_workers == 0
        steps = await episode(process_pool, "Add")
        return worker.pid, steps

    pid, ((_, info), step) = asyncio.run(scenario())
    assert gone([pid], limit_s=2) and info["pid"] != pid and step.info["steps_ever"] == 1
    assert (process_pool.hangs, process_pool.crashes) == (0, 0)


def test_a_pool_outlives_its_server(process_pool, children):
    asyncio.run(episode(process_pool, "Add"))
    (server,) = servers(children())
    workers = server.children()
    server.kill()
    assert gone([process.pid for process in workers], limit_s=2)

    async def scenario():
        for _ in range(3):  # the idle worker's death is noticed by the episode that gets it
            with contextlib.suppress(EnvCrashed):
                return await episode(process_pool, "Add")

    assert asyncio.run(scenario())[1].info["steps_ever"] == 1


# --- building the environment -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_an_environment_that_cannot_be_built_fails_each_lease(mode):
    with contextlib.closing(make_pool(mode, hostile_env.make_broken)) as pool:
        for _ in range(pool.workers + 1):
            error = asyncio.run(failure(pool))
            assert isinstance(error, EnvRaised) and error.call == "open" and "no data set here" in str(error)


@pytest.fixture
def crowded_pool():
    """A process pool whose workers share one processor with three others that never rest."""
    mine = os.sched_getaffinity(0)
    core = {min(mine)}
    burners = [
        subprocess.Popen([sys.executable, "-c", f"import os; os.sched_setaffinity(0, {core})\nwhile True: pass"])
        for _ in range(3)
    ]
    try:
        with contextlib.closing(make_pool(workers=1)) as pool:
            os.sched_setaffinity(0, core)
            asyncio.run(episode(pool))  # the server and its workers inherit the one processor
            os.sched_setaffinity(0, mine)
            yield pool
    finally:
        os.sched_setaffinity(0, mine)
        for burner in burners:
            burner.kill()
            burner.wait()


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the kernel keeps no figures on waiting")
def test_a_busy_machine_is_not_taken_for_a_hung_environment(crowded_pool):
    began = time.monotonic()
    asyncio.run(episode(crowded_pool, "Work"))  # 0.35 s of work
    assert time.monotonic() - began > LIMIT_S, "the machine was not busy enough to tell"
    assert crowded_pool.hangs == 0
    for hang in ("Sleep", "Spin"):
        began = time.monotonic()
        assert isinstance(asyncio.run(failure(crowded_pool, hang)), EnvTimeout)
        assert time.monotonic() - began < 5 * LIMIT_S + 3
    assert crowded_pool.hangs == 2


def test_building_may_crash_or_hang_too(monkeypatch):
    with contextlib.closing(make_pool(factory=hostile_env.make_dying)) as pool:
        assert "exit code 9" in str(asyncio.run(failure(pool)))
    monkeypatch.setattr(isolation, "START_LIMIT_S", 0.6)
    with contextlib.closing(make_pool(factory=hostile_env.make_sleeping)) as pool:
        error = asyncio.run(failure(pool))
        assert isinstance(error, EnvTimeout) and "no answer within 0.6 s" in str(error)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"factory": lambda: None}, "cannot be sent to a process .* use a function of a module"),
        ({"isolate": "proces"}, "isolate of environment 'Hostile' is 'proces'; set it to one of: inline, thread"),
        ({"workers": 0}, "environment 'Hostile' has 0 workers; it needs at least 1"),
        ({"timeout_s": 0}, "step_timeout_s of environment 'Hostile' is 0; it must be above 0 seconds"),
    ],
)
def test_a_pool_that_cannot_work_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        make_pool(**change)


# --- threads ----------------------------------------------------------------------------------------------------------


def test_hung_threads_are_lost_and_the_last_loss_says_what_to_do():
    with contextlib.closing(make_pool("thread", workers=2, timeout_s=0.1)) as pool:

        async def scenario():
            waiting = [failure(pool, "Sleep") for _ in range(4)]
            return await asyncio.gather(*waiting), await failure(pool, "Add")

        errors, last = asyncio.run(scenario())
        assert [type(error) for error in errors].count(EnvTimeout) == 2 == pool.hangs
        assert pool.live_workers == 0
        for error in (last, *[error for error in errors if type(error) is EnvError]):
            assert "all 2 threads hang" in str(error) and "`isolate: process` in custom_envs.Hostile" in str(error)


def test_a_thread_whose_caller_was_cancelled_is_used_again_when_its_call_is_over():
    with contextlib.closing(make_pool("thread", workers=1, timeout_s=1.5)) as pool:

        async def cancelled(action):
            running = asyncio.ensure_future(episode(pool, action))
            await asyncio.sleep(0.1)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running

        async def scenario():
            await cancelled("Nap")
            first = await asyncio.wait_for(episode(pool, "Add"), 2)
            await cancelled("Nap")
            return first

        assert asyncio.run(scenario())[1].info["steps_ever"] == 1
        assert asyncio.run(episode(pool, "Add"))[1].info["steps_ever"] == 1  # that call ended after its loop had
        assert (pool.live_workers, pool.hangs) == (1, 0)


def test_a_thread_that_hangs_after_its_caller_was_cancelled_holds_up_nobody_for_ever():
    with contextlib.closing(make_pool("thread", workers=1, timeout_s=0.3)) as pool:

        async def scenario():
            running = asyncio.ensure_future(episode(pool, "Sleep"))
            await asyncio.sleep(0.1)
            running.cancel()
            return await asyncio.wait_for(failure(pool, "Add"), 2)

        assert "all 1 threads hang" in str(asyncio.run(scenario()))
        assert pool.hangs == 1


# --- the end ----------------------------------------------------------------------------------------------------------


def test_close_is_quick_and_leaves_no_process(children):
    pool = make_pool(workers=3)

    async def scenario():
        await asyncio.gather(*[episode(pool, "Add") for _ in range(3)])
        busy = asyncio.ensure_future(failure(pool, "Spin"))
        await asyncio.sleep(0.2)
        started = children()
        start = time.monotonic()
        pool.close()
        elapsed_s = time.monotonic() - start
        return started, elapsed_s, await busy, await failure(pool)

    started, elapsed_s, busy, late = asyncio.run(scenario())
    assert 2 <= len(started) <= 4 and elapsed_s < 5
    assert "closed" in str(busy) and "the pool is closed" in str(late)
    assert not any(process.is_running() for process in started)
    assert pool.live_workers == 0
    pool.close()


HOST = """
    # No `if __name__ == "__main__"`: a worker that imported this file again would print again.
    import asyncio, signal, sys, threading
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background hands down "ignore"
    sys.path.append({here!r})
    import hostile_env
    from ragen.env.isolation import EnvPool

    print("host started", flush=True)
    pool = EnvPool(hostile_env.HostileEnv, tag="Hostile", isolate={isolate!r}, workers=2, timeout_s={timeout_s})

    async def play(action):
        async with pool.lease() as client:
            _, info = await client.reset(1)
            await client.step("Print")
            print("worker", info["pid"], flush=True)
            await client.step(action)

    async def main():
        return await asyncio.gather(play("Sleep"), play("Spin"), return_exceptions=True)

    print(*asyncio.run(main()), flush=True)
"""


@pytest.fixture
def host_script(tmp_path):
    """Starts the script above as a process of its own."""
    with contextlib.ExitStack() as stack:

        def start(isolate, timeout_s):
            script = tmp_path / "host.py"
            script.write_text(textwrap.dedent(HOST).format(here=str(HERE), isolate=isolate, timeout_s=timeout_s))
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            process = stack.enter_context(subprocess.Popen([sys.executable, str(script)], env=ENVIRONMENT, **pipes))
            stack.callback(process.kill)
            return process

        yield start


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_no_process_survives_the_host(host_script, end):
    host = host_script("process", timeout_s=600)
    lines = [host.stdout.readline().strip() for _ in range(3)]
    assert lines[0] == "host started"
    workers = [int(line.split()[1]) for line in lines[1:]]
    family = {process.pid for process in psutil.Process(host.pid).children(recursive=True)}
    assert set(workers) < family and len(family) == 3
    if end == signal.SIGINT:  # as the terminal's Ctrl-C: to all of the foreground group, which is the host alone
        assert all(os.getpgid(pid) != os.getpgid(host.pid) for pid in family)
    os.kill(host.pid, end)
    assert gone(family, limit_s=3)
    rest, errors = host.communicate(timeout=10)
    assert rest == "" and errors.count("printed by the environment") == 2


def test_hung_threads_do_not_keep_the_host_from_exiting(host_script):
    host = host_script("thread", timeout_s=0.3)
    output, _ = host.communicate(timeout=20)
    assert host.returncode == 0 and output.count("no answer within 0.3 s") == 2


def test_an_environment_of_the_main_script_is_refused_with_the_reason():
    script = textwrap.dedent("""
        import asyncio
        from ragen.env.isolation import EnvPool
        def make(): return None
        pool = EnvPool(make, tag="Mine", isolate="process", workers=1, timeout_s=5)
        async def main():
            async with pool.lease(): pass
        asyncio.run(main())
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=20, env=ENVIRONMENT)
    assert done.returncode == 1 and "define it in a module on the Python path" in done.stderr


def test_workers_carry_no_torch():
    script = "import sys, ragen.env.isolation_server; print(sorted({'torch', 'asyncio', 'verl'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=ENVIRONMENT)
    assert done.stdout.strip() == "[]", done.stderr


def test_numpy_is_single_threaded_in_workers(process_pool, children):
    asyncio.run(episode(process_pool, "Add"))
    assert [process.num_threads() for process in children()] == [1, 1]
