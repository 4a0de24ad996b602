# Sums ncu's table of launches by kernel and grid, as CSV: environments, kernel, blocks, launches, microseconds in all and of the
# longest, registers, share of the warps that a multiprocessor could hold.
BEGIN { FS = "\",\"" }
/^"ID"/ { for (i = 1; i <= NF; ++i) { name = $i; gsub(/"/, "", name); column[name] = i } next }
("Kernel Name" in column) && /^"[0-9]/ {
    blocks = $column["launch__grid_size"]; gsub(/[",]/, "", blocks)
    time = $column["gpu__time_duration.sum"]; gsub(/[",]/, "", time)
    registers = $column["launch__registers_per_thread"]; gsub(/[",]/, "", registers)
    active = $column["sm__warps_active.avg.pct_of_peak_sustained_active"]; gsub(/[",]/, "", active)
    key = envs "," $column["Kernel Name"] "," blocks
    launches[key] += 1; all[key] += time / 1000; warps[key] += active; of[key] = registers
    if (time / 1000 > longest[key]) longest[key] = time / 1000
}
END {
    for (key in launches)
        printf "%s,%d,%.1f,%.1f,%d,%.0f\n", key, launches[key], all[key], longest[key], of[key], warps[key] / launches[key] | "sort -t, -k5 -rn"
}
