#!/bin/sh
# Runs the bundle on a machine with an NVIDIA driver.
#
#   sh run.sh [RESULTS [STAGE..]]     RESULTS: ./results
#
# Stages, all by default, in the order of what an hour on a borrowed GPU should show first. Each takes at most 9 minutes:
#
#   quick      the driver, the first start with and without compiled kernels, one training on the GPU and on the CPU
#   kernels    time of every kernel of one PPO iteration, if ncu is there
#   speed      trainings on the GPU by number of environments, and as the guide has them
#   test       kernels against Rust bit for bit
#   train      trainings on the GPU against the CPU
#   crossover  where the GPU begins to pay
#   bench      environments, advantages, copies
#   peers      others on this GPU, if Python has them
#   sanitize   the comparisons under compute-sanitizer, if it works
#
# TRAIN_ENVS are the numbers of environments whose training is timed, TRAIN_ITERATIONS the iterations of each.
#
# Writes results.jsonl, .jsonl files of the stages and logs.tar.gz to RESULTS, complete after each stage, so that stages can run one by
# one. Needs neither Rust nor a CUDA toolkit. Exit code 1 if a comparison fails or the sanitizer finds something.
set -u
here=$(cd "$(dirname "$0")" && pwd)
results=${1:-"$here/results"}
[ $# -gt 0 ] && shift
[ $# -gt 0 ] || set -- quick kernels speed test train crossover bench peers sanitize
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

same() { # name, two runs: the same seed leaves the same parameters and moments
    outcome=passed
    for file in params.safetensors optimizer.safetensors; do
        cmp "$(newest "$2")/$file" "$(newest "$3")/$file" >"$logs/$1.log" 2>&1 || outcome=FAILED
    done
    note "$1" $outcome
    [ $outcome = passed ] || { failed=1; tail -n 3 "$logs/$1"*.log; }
}

speed() { # environments, minibatch, hidden layers, settings ..: env steps/s of a training on the GPU
    n=$1
    batch=$2
    hidden=$3
    shift 3
    log="$logs/speed-$n-$batch-$hidden.log"
    if timeout 120 "$here/bin/rl" train cartpole --device cuda "$@" --set hidden=[$hidden] --set eval_episodes=1 --json --profile \
        --run-dir "$logs/runs/speed-$n-$batch-$hidden" >"$log" 2>&1; then
        last=$(grep '"env_steps_per_s"' "$log" | tail -n 1)
        echo "{\"device\": \"cuda\", \"envs\": $n, \"batch\": $batch, \"hidden\": [$hidden], \"done\": $last}" | tee -a "$results/train.jsonl"
    else
        note "speed-$n-$batch-$hidden" "failed or killed"
        tail -n 3 "$log"
    fi
    rm -rf "$logs/runs"
}

small="--steps 8192 --seed 7 --set hidden=[32] --set conv=[] --set normalize_obs=false --set eval_episodes=1 --set eval_max_steps=50"
rollout="--set ppo.n_steps=32 --set ppo.n_epochs=4"

# RL_REQUIRE_GPU turns a skip into a failure. The comparison on the host's compiler is for machines without a GPU.
RL_REQUIRE_GPU=1 RL_SKIP_CXX=1
export RL_REQUIRE_GPU RL_SKIP_CXX

for stage in "$@"; do
    case $stage in
    quick)
        nvidia-smi >"$logs/nvidia-smi.log" 2>&1
        head -n 12 "$logs/nvidia-smi.log"
        "$here/bin/rl" devices
        # The driver compiles kernels once and keeps them.
        cache="$logs/compiled"
        rm -rf "$cache" "$logs/quick"
        : >"$results/quick.jsonl"
        for start in cold warm; do
            begin=$(date +%s%N)
            CUDA_CACHE_PATH="$cache" timeout 300 "$here/bin/rl" train cartpole --device cuda $small \
                --run-dir "$logs/quick/$start" >"$logs/quick-$start.log" 2>&1 || failed=1
            echo "{\"start\": \"$start\", \"ms\": $((($(date +%s%N) - begin) / 1000000))}" | tee -a "$results/quick.jsonl"
        done
        timeout 300 "$here/bin/rl" train cartpole --device cpu $small --run-dir "$logs/quick/cpu" >"$logs/quick-cpu.log" 2>&1
        same train-quick "$logs/quick/cpu" "$logs/quick/warm"
        rm -rf "$logs/quick" "$cache"
        ;;
    kernels)
        : >"$results/kernels.csv"
        if ! ncu=$(command -v ncu); then
            note kernels "no ncu, skipped"
        else
            for of in ${KERNELS_OF:-4096:64,64 65536:64,64 4096:256,256}; do
                n=${of%:*} hidden=${of#*:}
                # The first iteration is not a graph, so that every kernel is timed; replayed once each, one metric is one pass.
                timeout 160 "$ncu" --clock-control none --csv --page raw --print-units base \
                    --metrics gpu__time_duration.sum,launch__grid_size,launch__registers_per_thread,sm__warps_active.avg.pct_of_peak_sustained_active \
                    "$here/bin/rl" train cartpole --device cuda --envs $n --steps $((n * 32)) $rollout --set hidden=[$hidden] \
                    --set ppo.batch_size=$((n * 8)) --run-dir "$logs/runs/kernels-$n-$hidden" >"$logs/kernels-$n-$hidden.csv" 2>&1
                awk -v envs="$n $(echo $hidden | tr , -)" -f "$here/kernels.awk" "$logs/kernels-$n-$hidden.csv" | tee -a "$results/kernels.csv"
            done
            note kernels done
        fi
        ;;
    speed)
        : >"$results/train.jsonl"
        for n in ${TRAIN_ENVS:-1024 4096 16384 65536 262144}; do
            speed $n $((n * 8)) 64,64 --steps $((n * 32 * ${TRAIN_ITERATIONS:-40})) $rollout --set ppo.batch_size=$((n * 8)) --envs $n
        done
        for hidden in 256,256 1024,1024; do
            speed 4096 32768 $hidden --steps $((4096 * 32 * 20)) $rollout --set ppo.batch_size=32768 --envs 4096
        done
        speed 4096 256 64,64 --envs 4096 --steps 262144 # the preset's small minibatches
        ;;
    test)
        for test in "$here"/bin/test-*; do
            # Only the host compiles sources, so mistakes can only be planted there.
            only=
            case $(basename "$test") in test-rl-buffer-lib | test-rl-agents-lib) only=device:: ;; esac
            try 300 "$(basename "$test")" "$test" $only --test-threads=1 --nocapture --skip planted
        done
        ;;
    train)
        # The same seed must leave the same parameters and moments on the CPU and on the GPU.
        runs="$logs/runs"
        rm -rf "$runs"
        for env in cartpole pendulum snake breakout repeat_first; do
            for algo in ppo a2c dqn sac td3; do
                case "$env $algo" in
                    "pendulum dqn" | "repeat_first a2c" | "repeat_first dqn") continue ;;
                    "pendulum sac" | "pendulum td3") ;;
                    *sac | *td3) continue ;; # continuous actions
                esac
                for device in cpu cuda; do
                    more=
                    [ $env = repeat_first ] && more="--envs 8 --set ppo.n_steps=64 --set ppo.batch_size=256" # its preset remembers
                    case $algo in dqn | sac | td3) more="--set $algo.learning_starts=1000" ;; esac
                    timeout 300 "$here/bin/rl" train $env --algo $algo --device $device $small $more \
                        --run-dir "$runs/$env-$algo-$device" >"$logs/train-$env-$algo-$device.log" 2>&1
                done
                same "train-$env-$algo" "$runs/$env-$algo-cpu" "$runs/$env-$algo-cuda"
            done
        done
        rm -rf "$runs"
        ;;
    crossover)
        # The measurement is kept in the logs, not in the user's cache.
        XDG_CACHE_HOME="$logs" try 540 crossover "$here/bin/rl" bench crossover --device cuda --json
        grep '"name":"crossover"' "$logs/crossover.log" >"$results/crossover.jsonl"
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
        ;;
    peers)
        : >"$results/peers.jsonl"
        if python3 -c "import jax" 2>/dev/null; then
            timeout 200 python3 "$here/peers/device_ppo.py" >>"$results/peers.jsonl" 2>"$logs/peer-jax-ppo.log"
            note peer-jax-ppo "exit $?"
            JAX_DEFAULT_MATMUL_PRECISION=highest timeout 200 python3 "$here/peers/device_ppo.py" >>"$results/peers.jsonl" \
                2>"$logs/peer-jax-ppo-highest.log"
            note peer-jax-ppo-highest "exit $?"
            for precision in default highest; do
                WIDTH=256 JAX_DEFAULT_MATMUL_PRECISION=$precision timeout 100 python3 "$here/peers/device_ppo.py" 4096 \
                    >>"$results/peers.jsonl" 2>"$logs/peer-jax-ppo-256-$precision.log"
            done
        else
            note peer-jax-ppo "not installed, skipped"
        fi
        for peer in torch numba gymnax gymnasium; do
            if ! python3 -c "import $peer" 2>/dev/null; then
                note "peer-$peer" "not installed, skipped"
            elif timeout 75 python3 "$here/peers/device_cartpole.py" "$peer" >>"$results/peers.jsonl" 2>"$logs/peer-$peer.log"; then
                note "peer-$peer" done
            else
                note "peer-$peer" failed
            fi
        done
        ;;
    sanitize)
        sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | tail -n 1)
        first="$here/bin/test-rl-cuda-copies"
        if [ -z "$sanitizer" ]; then
            note compute-sanitizer "not found, skipped"
        elif timeout 120 "$sanitizer" --tool memcheck "$first" --test-threads=1 parts 2>&1 | grep -qi "not supported"; then
            note compute-sanitizer "refused on this machine, skipped"
        else
            # A training uses each kernel as it is enqueued, the modules' tests each kernel in odd sizes.
            for tool in memcheck initcheck synccheck racecheck; do
                try 60 "$tool-train" "$sanitizer" --tool $tool --error-exitcode 9 "$here/bin/rl" train cartpole --device cuda $small \
                    --envs 64 --set ppo.n_steps=32 --set ppo.n_epochs=1 --set ppo.batch_size=1024 --run-dir "$logs/runs/$tool"
            done
            rm -rf "$logs/runs"
            try 150 racecheck-modules "$sanitizer" --tool racecheck --error-exitcode 9 "$here"/bin/test-rl-cuda-modules --test-threads=1
            for test in "$first" "$here"/bin/test-rl-cuda-steps; do
                try 60 "memcheck-$(basename "$test")" "$sanitizer" --tool memcheck --padding 4096 --error-exitcode 9 \
                    "$test" --test-threads=1 --skip planted
            done
        fi
        ;;
    *)
        echo "no stage $stage; they are: quick kernels speed test train crossover bench peers sanitize" >&2
        exit 2
        ;;
    esac
    tar -czf "$results/logs.tar.gz" -C "$here" logs
done
echo "results are in $results"
exit $failed
