#!/bin/sh
# Runs the bundle on a machine with an NVIDIA driver: kernels against Rust bit for bit, trainings on the GPU against the CPU, benchmarks,
# peers if Python has them, then the comparisons again under compute-sanitizer if it works.
#
#   sh run.sh [RESULTS [STAGE..]]     stages: test train bench peers sanitize (all); RESULTS: ./results
#
# TRAIN_ENVS are the numbers of environments whose training is timed, TRAIN_ITERATIONS the iterations of each.
#
# Writes train.jsonl, bench.jsonl, crossover.jsonl, peers.jsonl, results.jsonl and logs.tar.gz to RESULTS, complete after each
# stage, so that stages can run one by one.
# Needs neither Rust nor a CUDA toolkit. Exit code 1 if a comparison fails or the sanitizer finds something.
set -u
here=$(cd "$(dirname "$0")" && pwd)
results=${1:-"$here/results"}
[ $# -gt 0 ] && shift
[ $# -gt 0 ] || set -- test train bench peers sanitize
logs="$here/logs"
mkdir -p "$results" "$logs"
chmod +x "$here"/bin/*
failed=0

note() { # name, outcome
    echo "$1: $2"
    echo "{\"$1\": \"$2\"}" >>"$results/results.jsonl"
}

try() { # seconds, name, command ..
    limit=$1
    name=$2
    shift 2
    if timeout "$limit" "$@" >"$logs/$name.log" 2>&1; then
        note "$name" passed
    else
        note "$name" FAILED
        failed=1
        tail -n 20 "$logs/$name.log"
    fi
}

newest() { # run: its newest checkpoint
    ls -d "$1"/checkpoints/ckpt-* | tail -n 1
}

# RL_REQUIRE_GPU turns a skip into a failure. The comparison on the host's compiler is for machines without a GPU.
RL_REQUIRE_GPU=1 RL_SKIP_CXX=1
export RL_REQUIRE_GPU RL_SKIP_CXX

for stage in "$@"; do
    case $stage in
    test)
        for test in "$here"/bin/test-*; do
            # Only the host compiles sources, so mistakes can only be planted there.
            only=
            case $(basename "$test") in *-lib) only=device:: ;; esac
            try 300 "$(basename "$test")" "$test" $only --test-threads=1 --nocapture --skip planted
        done
        ;;
    train)
        # The same seed must leave the same parameters and moments on the CPU and on the GPU.
        runs="$logs/runs"
        rm -rf "$runs"
        small="--steps 8192 --seed 7 --set hidden=[32] --set conv=[] --set normalize_obs=false --set eval_episodes=1"
        for env in cartpole pendulum snake breakout; do
            for algo in ppo a2c dqn; do
                [ "$env $algo" = "pendulum dqn" ] && continue
                for device in cpu cuda; do
                    timeout 300 "$here/bin/rl" train $env --algo $algo --device $device $small --set eval_max_steps=50 \
                        --run-dir "$runs/$env-$algo-$device" >"$logs/train-$env-$algo-$device.log" 2>&1
                done
                outcome=passed
                for file in params.safetensors optimizer.safetensors; do
                    cmp "$(newest "$runs/$env-$algo-cpu")/$file" "$(newest "$runs/$env-$algo-cuda")/$file" \
                        >"$logs/train-$env-$algo.log" 2>&1 || outcome=FAILED
                done
                note "train-$env-$algo" $outcome
                [ $outcome = passed ] || { failed=1; tail -n 3 "$logs/train-$env-$algo"*.log; }
            done
        done
        : >"$results/train.jsonl"
        for n in ${TRAIN_ENVS:-1024 4096 16384 65536}; do
            for device in cpu cuda; do
                last=$(timeout 300 "$here/bin/rl" train cartpole --device $device --envs $n --steps $((n * 32 * ${TRAIN_ITERATIONS:-200})) \
                    --set ppo.n_steps=32 --set ppo.batch_size=$((n * 8)) --set ppo.n_epochs=4 --set eval_episodes=1 --json \
                    --run-dir "$runs/speed-$n-$device" 2>"$logs/speed-$n-$device.log" | tail -n 1)
                [ -n "$last" ] && echo "{\"device\": \"$device\", \"envs\": $n, \"done\": $last}" | tee -a "$results/train.jsonl"
            done
        done
        rm -rf "$runs"
        ;;
    bench)
        : >"$results/bench.jsonl"
        if timeout 540 "$here/bin/device_bench" >"$results/bench.jsonl" 2>"$logs/bench.log"; then
            note bench done
        else
            note bench FAILED
            failed=1
            tail -n 5 "$logs/bench.log"
            grep '"failed"' "$results/bench.jsonl" | head -n 5
        fi
        grep '"bar"' "$results/bench.jsonl"
        # Where the GPU begins to pay. The measurement is kept in the logs, not in the user's cache.
        XDG_CACHE_HOME="$logs" try 540 crossover "$here/bin/rl" bench crossover --device cuda --json
        grep '"name":"crossover"' "$logs/crossover.log" >"$results/crossover.jsonl"
        ;;
    peers)
        : >"$results/peers.jsonl"
        for peer in torch numba gymnax gymnasium; do
            if ! python3 -c "import $peer" 2>/dev/null; then
                note "peer-$peer" "not installed, skipped"
            elif timeout 300 python3 "$here/peers/device_cartpole.py" "$peer" >>"$results/peers.jsonl" 2>"$logs/peer-$peer.log"; then
                note "peer-$peer" done
            else
                note "peer-$peer" failed
            fi
        done
        ;;
    sanitize)
        sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | tail -n 1)
        # Kernels share no memory, so there are no races; memcheck checks every access instead.
        first="$here/bin/test-rl-cuda-copies"
        if [ -z "$sanitizer" ]; then
            note compute-sanitizer "not found, skipped"
        elif timeout 120 "$sanitizer" --tool memcheck "$first" --test-threads=1 parts 2>&1 | grep -qi "not supported"; then
            note compute-sanitizer "refused on this machine, skipped"
        else
            for test in "$first" "$here"/bin/test-rl-cuda-steps "$here"/bin/test-rl-*-on_device; do
                try 300 "memcheck-$(basename "$test")" "$sanitizer" --tool memcheck --padding 4096 --error-exitcode 9 \
                    "$test" --test-threads=1 --skip planted
            done
        fi
        ;;
    *)
        echo "no stage $stage: test, train, bench, peers or sanitize" >&2
        exit 2
        ;;
    esac
    tar -czf "$results/logs.tar.gz" -C "$here" logs
done
echo "results are in $results"
exit $failed
