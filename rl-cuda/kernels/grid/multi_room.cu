// Two rooms with a closed door: the twin of `MultiRoom` in rl-envs/src/envs/grid_world.rs.
//
// Numbers of columns and rows are the elements 0 and 1 of pairs there, and separate here.

#include "grid_world.cuh"

struct Room {
    static const i32 SIZE = 4;

    i32 left, top;

    __device__ Area area() const {
        return {(u32)left, (u32)(left + SIZE), (u32)top, (u32)(top + SIZE)};
    }
};

struct MultiRoom {
    static const u32 SIZE = 25, TRIES = 8;
    static const bool SEES_ALL = false;

    // True if the room is inside the grid, whose last row it may not touch.
    __device__ static bool fits(const Room& room) {
        const i32 LIMIT = (i32)SIZE - Room::SIZE;
        return (room.left >= 0) & (room.left <= LIMIT) & (room.top >= 0) & (room.top < LIMIT);
    }

    // Draws a door in any wall but the left one, and the room behind it.
    __device__ static Room draw_next(const Room& first, i32& door_x, i32& door_y, Rng& rng) {
        u32 exit = (3 + rng.below(3)) & 3;
        bool is_column = (exit & 1) == 0;
        i32 forth = exit < 2 ? Room::SIZE - 1 : 0, back = exit < 2 ? 0 : Room::SIZE - 1;
        i32 door = 1 + (i32)rng.below(Room::SIZE - 2), aside = Room::SIZE - 2 - (i32)rng.below(Room::SIZE - 2);
        door_x = first.left + (is_column ? forth : door);
        door_y = first.top + (is_column ? door : forth);
        return {door_x - (is_column ? back : aside), door_y - (is_column ? aside : back)};
    }

    // Draws both rooms and the door, again from the first one if the second finds no space.
    __device__ static void draw_both(Room& first, Room& second, i32& door_x, i32& door_y, Rng& rng) {
        bool found = false;
#pragma unroll 1
        while (!found) {
            first.left = (i32)rng.below(SIZE - 2);
            first.top = (i32)rng.below(SIZE - 2);
            bool is_inside = fits(first);
#pragma unroll 1
            for (u32 attempt = 0; attempt < TRIES && is_inside && !found; ++attempt) {
                second = draw_next(first, door_x, door_y, rng);
                found = fits(second);
            }
        }
    }

    __device__ static void build(Grid& grid, Rng& rng) {
        Room first, second;
        i32 door_x = 0, door_y = 0;
        draw_both(first, second, door_x, door_y, rng);
        grid.wall_in(first.area());
        grid.wall_in(second.area());
        u32 color = rng.below(N_COLORS);
        grid.at((u32)door_x, (u32)door_y) = (u16)(DOOR | color << 4 | CLOSED);
        grid.place_agent(first.area(), rng);
        u32 column = 0, row = 0;
        grid.draw_free(second.area(), rng, column, row);
        grid.at(column, row) = GOAL;
    }
};

typedef GridWorld<MultiRoom> MultiRoomWorld;

ENV_KERNELS(multi_room, MultiRoomWorld)
