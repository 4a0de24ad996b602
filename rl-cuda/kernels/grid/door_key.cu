// Two rooms with a locked door: the twin of `DoorKey` in rl-envs/src/envs/grid_world.rs.

#include "grid_world.cuh"

struct DoorKey {
    static const u32 SIZE = 8;
    static const bool SEES_ALL = false;

    __device__ static void build(Grid& grid, Rng& rng) {
        grid.wall_in({0, SIZE, 0, SIZE});
        grid.at(SIZE - 2, SIZE - 2) = GOAL;
        u32 wall = 2 + rng.below(SIZE - 4);
#pragma unroll 1
        for (u32 row = 0; row < SIZE; ++row) {
            grid.at(wall, row) = WALL;
        }
        Area left = {0, wall, 0, SIZE};
        grid.place_agent(left, rng);
        grid.at(wall, 1 + rng.below(SIZE - 3)) = DOOR | YELLOW | LOCKED;
        u32 column = 0, row = 0;
        grid.draw_free(left, rng, column, row);
        grid.at(column, row) = KEY | YELLOW;
    }
};

typedef GridWorld<DoorKey> DoorKeyWorld;

ENV_KERNELS(door_key, DoorKeyWorld)
