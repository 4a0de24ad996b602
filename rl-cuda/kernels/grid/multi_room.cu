// Rooms behind doors: the twin of `MultiRoom` in rl-envs/src/envs/grid_world.rs.
//
// Numbers of columns and rows are the elements 0 and 1 of pairs there, and separate here.

#include "grid_world.cuh"

struct Room {
    i32 left, top, width, height;
    u32 entry;
    i32 door_x, door_y;

    __device__ Area area() const {
        return {(u32)left, (u32)(left + width), (u32)top, (u32)(top + height)};
    }
};

struct MultiRoom {
    static const u32 SIZE = 25;
    static const bool SEES_ALL = false;
    static const u32 N = 2, TRIES = 8;
    static const i32 MIN = 4, MAX = 4;

    // Draws a room behind a door; false if there is no space for it. The first one begins at its door.
    __device__ static bool draw(const Room (&rooms)[N], u32 n, Room& room, Rng& rng) {
        room.width = MIN + (i32)rng.below(MAX - MIN + 1);
        room.height = MIN + (i32)rng.below(MAX - MIN + 1);
        room.left = room.door_x;
        room.top = room.door_y;
        if (n > 0) {
            bool is_column = (room.entry & 1) == 0;
            i32 along = is_column ? room.width : room.height, across = is_column ? room.height : room.width;
            i32 back = room.entry < 2 ? along - 1 : 0, aside = across - 2 - (i32)rng.below(across - 2);
            room.left -= is_column ? back : aside;
            room.top -= is_column ? aside : back;
        }
        bool fits = (room.left >= 0) & (room.top >= 0) & (room.left + room.width <= (i32)SIZE) & (room.top + room.height < (i32)SIZE);
#pragma unroll
        for (u32 k = 0; k < N; ++k) {
            const Room& of = rooms[k];
            bool apart = (room.left + room.width < of.left) | (of.left + of.width <= room.left) |
                (room.top + room.height < of.top) | (of.top + of.height <= room.top);
            fits &= (k + 1 >= n) | apart;
        }
        return fits;
    }

    // Draws a door in another wall, and the room behind it.
    __device__ static bool draw_next(const Room (&rooms)[N], u32 n, const Room& last, Room& room, Rng& rng) {
        u32 exit = (last.entry + 1 + rng.below(3)) & 3;
        bool is_column = (exit & 1) == 0;
        i32 along = is_column ? last.width : last.height, across = is_column ? last.height : last.width;
        i32 forth = exit < 2 ? along - 1 : 0, aside = 1 + (i32)rng.below(across - 2);
        room.entry = (exit + 2) & 3;
        room.door_x = last.left + (is_column ? forth : aside);
        room.door_y = last.top + (is_column ? aside : forth);
        return draw(rooms, n, room, rng);
    }

    // Draws all rooms, again from the first one where there is no space for the next.
    __device__ static void draw_all(Room (&rooms)[N], Rng& rng) {
        u32 n = 0;
#pragma unroll 1
        while (n < N) {
            Room room = {0, 0, 0, 0, 2, 0, 0};
            room.door_x = (i32)rng.below(SIZE - 2);
            room.door_y = (i32)rng.below(SIZE - 2);
            n = 0;
            bool fits = draw(rooms, 0, room, rng);
#pragma unroll 1
            while (fits) {
#pragma unroll
                for (u32 k = 0; k < N; ++k) {
                    if (k == n) rooms[k] = room;
                }
                Room last = room;
                n += 1;
                fits = false;
#pragma unroll 1
                for (u32 attempt = 0; attempt < TRIES && n < N && !fits; ++attempt) {
                    fits = draw_next(rooms, n, last, room, rng);
                }
            }
        }
    }

    __device__ static void build(Grid& grid, Rng& rng) {
        Room rooms[N] = {};
        draw_all(rooms, rng);
        u32 color = 0;
#pragma unroll
        for (u32 k = 0; k < N; ++k) {
            grid.wall_in(rooms[k].area());
            if (k > 0) {
                // Another colour than the last door's.
                color = k == 1 ? rng.below(N_COLORS) : (color + 1 + rng.below(N_COLORS - 1)) % N_COLORS;
                grid.at((u32)rooms[k].door_x, (u32)rooms[k].door_y) = (u16)(DOOR | color << 4 | CLOSED);
            }
        }
        grid.place_agent(rooms[0].area(), rng);
        u32 column = 0, row = 0;
        grid.draw_free(rooms[N - 1].area(), rng, column, row);
        grid.at(column, row) = GOAL;
    }
};

typedef GridWorld<MultiRoom> MultiRoomWorld;

ENV_KERNELS(multi_room, MultiRoomWorld)
