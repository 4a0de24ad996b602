// One room: the twin of `Empty` in rl-envs/src/envs/grid_world.rs.

#include "grid_world.cuh"

struct Empty {
    static const u32 SIZE = 8;
    static const bool SEES_ALL = true;

    __device__ static void build(Grid& grid, Rng& rng) {
        Area all = {0, SIZE, 0, SIZE};
        grid.wall_in(all);
        grid.at(SIZE - 2, SIZE - 2) = GOAL;
        grid.place_agent(all, rng);
    }
};

typedef GridWorld<Empty> EmptyWorld;

ENV_KERNELS(empty, EmptyWorld)
