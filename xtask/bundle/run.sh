#!/bin/sh
# Runs what is packed here on a machine with an NVIDIA driver: kernels against Rust bit for bit, the same under compute-sanitizer where
# there is one, then benches, and peers where Python has them.
#
#   sh run.sh [RESULTS]     writes logs, bench.jsonl, peers.jsonl and results.json into RESULTS (./results)
#
# Needs neither Rust nor a CUDA toolkit. Exit code 1 if a comparison fails or the sanitizer finds something.
set -u
here=$(cd "$(dirname "$0")" && pwd)
results=${1:-"$here/results"}
mkdir -p "$results"
failed=0
json=""

note() { # name, outcome
    echo "$1: $2"
    json="$json${json:+, }\"$1\": \"$2\""
}

try() { # name, command ..
    name=$1
    shift
    if "$@" >"$results/$name.log" 2>&1; then
        note "$name" passed
    else
        note "$name" FAILED
        failed=1
        tail -n 20 "$results/$name.log"
    fi
}

# The GPU is required: nothing here passes by being skipped.
RL_REQUIRE_GPU=1
export RL_REQUIRE_GPU
for test in "$here"/bin/test-*; do
    # Mistakes are planted into sources, which are not packed.
    try "$(basename "$test")" "$test" --test-threads=1 --nocapture --skip planted
done

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | tail -n 1)
if [ -n "$sanitizer" ]; then
    for tool in memcheck racecheck; do
        for test in "$here"/bin/test-rl-cuda-steps "$here"/bin/test-rl-*-on_device; do
            try "$tool-$(basename "$test")" "$sanitizer" --tool "$tool" --error-exitcode 9 \
                "$test" --test-threads=1 --skip planted --skip k_steps_in_one_launch
        done
    done
else
    note compute-sanitizer "not found, skipped"
fi

if "$here/bin/device_bench" >"$results/bench.jsonl" 2>"$results/bench.log"; then
    note bench done
    grep '"bar"' "$results/bench.jsonl"
else
    note bench FAILED
    failed=1
    tail -n 5 "$results/bench.log"
fi

: >"$results/peers.jsonl"
for peer in torch numba gymnax gymnasium; do
    if python3 -c "import $peer" 2>/dev/null; then
        if python3 "$here/peers/device_cartpole.py" "$peer" >>"$results/peers.jsonl" 2>"$results/peer-$peer.log"; then
            note "peer-$peer" done
        else
            note "peer-$peer" "failed"
        fi
    else
        note "peer-$peer" "not installed, skipped"
    fi
done

printf '{%s}\n' "$json" >"$results/results.json"
echo "results are in $results"
exit $failed
