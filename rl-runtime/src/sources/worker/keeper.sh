# Keeper of a worker: starts it, and kills whatever it leaves behind.
#
# Runs as `sh -c SCRIPT sh COMMAND..`; file descriptor 0 is the worker's socket. The keeper is a subreaper: it becomes the parent of
# each descendant whose own parent has died, also of one with a session or an environment of its own. It gets USR2 when the
# program dies, or wants the worker dead, and ends as the worker has ended.
end() {
    trap '' USR2 TERM INT HUP
    rounds=0
    while read -r left <"/proc/$$/task/$$/children"; [ "$left" ] && [ "$((rounds += 1))" -lt 1000 ]; do
        kill -9 $left
        sleep 0.01 # and reap
    done
}

trap 'kill -9 "$worker"; end; exit 1' USR2 TERM INT HUP
exec 3<&0 </dev/null
"$@" <&3 3<&- &
worker=$!
exec 3<&- 2>/dev/null
wait "$worker"
status=$?
end
trap - USR2 TERM INT HUP
[ "$status" -gt 128 ] && ulimit -c 0 && kill "-$((status - 128))" $$
exit "$status"
