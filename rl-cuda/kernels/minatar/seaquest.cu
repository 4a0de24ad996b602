// Seaquest: the twin of rl-envs/src/envs/minatar/seaquest.rs, which has the task, the planes of an observation and the source.
//
// Registers cannot be indexed, so the five lists are in memory behind the words: 64 places each, u16, as columns (5 * 64, N). They
// are short in play; a thread reads only the places that are taken.

#include "minatar.cuh"

// Fish, submarine, diver or bullet, as 16 bits. Columns beyond the board are 10 and 11 on the right, 15 and 14 on the left.
struct Swimmer {
    u32 x, y, right, move_timer, shot_timer;

    __device__ static Swimmer of(u32 bits) {
        return {bits & 15, bits >> 4 & 15, bits >> 8 & 1, bits >> 9 & 7, bits >> 12};
    }

    __device__ u16 bits() const {
        return (u16)(x | y << 4 | right << 8 | move_timer << 9 | shot_timer << 12);
    }

    // Column in front of it, or behind it.
    __device__ u32 beside(u32 to_the_right) const {
        return (x + (to_the_right ? 1 : 15)) & 15;
    }

    __device__ bool is_out() const {
        return x >= SIZE;
    }

    __device__ bool is_at(u32 column, u32 row) const {
        return x == column && y == row;
    }

    // Waits, or moves and waits `interval` steps; returns true if it moved.
    __device__ bool moves(u32 interval) {
        if (move_timer > 0) {
            move_timer -= 1;
            return false;
        }
        move_timer = interval;
        x = beside(right);
        return true;
    }
};

// A list of an environment: place j is places[j * n_envs].
struct List {
    u16* places;
    u32 n_envs, len;

    __device__ Swimmer get(u32 j) const {
        return Swimmer::of(places[(u64)j * n_envs]);
    }

    __device__ void set(u32 j, const Swimmer& swimmer) {
        places[(u64)j * n_envs] = swimmer.bits();
    }

    __device__ void push(const Swimmer& swimmer) {
        set(len, swimmer);
        len += 1;
    }

    // Removes a swimmer; those after it move up, for their order decides who is hit.
    __device__ void remove(u32 j) {
        len -= 1;
#pragma unroll 1
        for (; j < len; ++j) {
            places[(u64)j * n_envs] = places[(u64)(j + 1) * n_envs];
        }
    }

    // Place of the first swimmer in a cell, `len` if there is none.
    __device__ u32 find(u32 x, u32 y) const {
        u32 j = 0;
#pragma unroll 1
        while (j < len && !get(j).is_at(x, y)) {
            ++j;
        }
        return j;
    }

    // True if one in row `y` moves in the other direction.
    __device__ bool is_met(u32 y, u32 right) const {
        bool met = false;
#pragma unroll 1
        for (u32 j = 0; j < len; ++j) {
            Swimmer other = get(j);
            met |= other.y == y && other.right != right;
        }
        return met;
    }
};

struct Seaquest {
    static const u32 WORDS = 17, PLANES = 10, N_ACTIONS = 6;
    static const u32 DEEPEST = 8, SPAWN = 20, DIVER_SPAWN = 30, MOVE = 5, FASTEST = 2, COOL_DOWN = 5, SHOT = 10, MOST = 64;
    static const i32 OXYGEN = 200, ROOM = 6, FEWEST = -1000;

    List f_bullets, e_bullets, e_fish, e_subs, divers;
    i32 oxygen, diver_count;
    u32 sub_x, sub_y, sub_or;
    u32 e_spawn_speed, e_spawn_timer, d_spawn_timer, move_speed, ramp_index, shot_timer, surface;

    __device__ static List list(const Envs& envs, u64 i, u32 which) {
        u16* halves = (u16*)(envs.words + (u64)MinAtar<Seaquest>::W * envs.n_envs);
        return {halves + (u64)which * MOST * envs.n_envs + i, envs.n_envs, 0};
    }

    __device__ Seaquest(const Envs& envs, u64 i)
        : f_bullets(list(envs, i, 0)), e_bullets(list(envs, i, 1)), e_fish(list(envs, i, 2)), e_subs(list(envs, i, 3)),
          divers(list(envs, i, 4)) {}

    template <class Visit>
    __device__ void each_word(Visit& visit) {
        visit(f_bullets.len, e_bullets.len, e_fish.len, e_subs.len, divers.len, oxygen, diver_count, sub_x, sub_y, sub_or);
        visit(e_spawn_speed, e_spawn_timer, d_spawn_timer, move_speed, ramp_index, shot_timer, surface);
    }

    __device__ void start(Rng&) {
        f_bullets.len = e_bullets.len = e_fish.len = e_subs.len = divers.len = 0;
        oxygen = OXYGEN;
        diver_count = 0;
        sub_x = 5;
        sub_y = 0;
        sub_or = 0;
        e_spawn_speed = e_spawn_timer = SPAWN;
        d_spawn_timer = DIVER_SPAWN;
        move_speed = MOVE;
        ramp_index = 0;
        shot_timer = 0;
        surface = 1;
    }

    // Lets enemies and divers enter whose time has come.
    __device__ void spawn(Rng& rng) {
#pragma unroll 1
        for (u32 kind = 0; kind < 2; ++kind) {
            bool is_diver = kind == 1;
            if ((is_diver ? d_spawn_timer : e_spawn_timer) != 0) continue;
            u32 right = rng.below(2) == 0 ? 1 : 0;
            u32 y = 1 + rng.below(8);
            bool is_sub = rng.below(3) == 0;
            Swimmer drawn = {right ? 0u : SIZE - 1u, y, right, move_speed, 0};
            if (is_diver) {
                drawn.move_timer = MOVE;
                d_spawn_timer = DIVER_SPAWN;
                if (divers.len < MOST) divers.push(drawn);
                continue;
            }
            e_spawn_timer = e_spawn_speed;
            if (!e_subs.is_met(y, right) && !e_fish.is_met(y, right) && e_subs.len < MOST && e_fish.len < MOST) {
                if (is_sub) {
                    drawn.shot_timer = SHOT;
                    e_subs.push(drawn);
                } else {
                    e_fish.push(drawn);
                }
            }
        }
    }

    // Moves the player, or fires.
    __device__ void act(u32 action) {
        if (action == 1) {
            sub_x = sub_x > 0 ? sub_x - 1 : 0;
            sub_or = 0;
        } else if (action == 2) {
            sub_y = sub_y > 0 ? sub_y - 1 : 0;
        } else if (action == 3) {
            sub_x = least(sub_x + 1, SIZE - 1);
            sub_or = 1;
        } else if (action == 4) {
            sub_y = least(sub_y + 1, DEEPEST);
        } else if (action == 5 && shot_timer == 0 && f_bullets.len < MOST) {
            f_bullets.push({sub_x, sub_y, sub_or, 0, 0});
            shot_timer = COOL_DOWN;
        }
    }

    // Moves the player's bullets; returns the number of enemies hit.
    __device__ u32 move_bullets() {
        u32 hits = 0;
#pragma unroll 1
        for (u32 j = f_bullets.len; j-- > 0;) {
            Swimmer bullet = f_bullets.get(j);
            bullet.x = bullet.beside(bullet.right);
            bool is_gone = bullet.is_out();
            if (!is_gone) {
                u32 fish = e_fish.find(bullet.x, bullet.y);
                if (fish < e_fish.len) {
                    e_fish.remove(fish);
                    is_gone = true;
                } else {
                    u32 sub = e_subs.find(bullet.x, bullet.y);
                    if (sub < e_subs.len) {
                        e_subs.remove(sub);
                        is_gone = true;
                    }
                }
                hits += is_gone ? 1 : 0;
            }
            if (is_gone) {
                f_bullets.remove(j);
            } else {
                f_bullets.set(j, bullet);
            }
        }
        return hits;
    }

    // Moves the divers, and takes those on board that meet the player.
    __device__ void move_divers() {
#pragma unroll 1
        for (u32 j = divers.len; j-- > 0;) {
            Swimmer diver = divers.get(j);
            bool has_room = diver_count < ROOM;
            bool is_saved = has_room && diver.is_at(sub_x, sub_y);
            is_saved = is_saved || (diver.moves(MOVE) && has_room && diver.is_at(sub_x, sub_y));
            diver_count += is_saved ? 1 : 0;
            if (is_saved || diver.is_out()) {
                divers.remove(j);
            } else {
                divers.set(j, diver);
            }
        }
    }

    // Moves the fish, or the submarines, which also fire; adds those that are hit to `hits` and returns true if one meets the player.
    __device__ bool move_enemies(List& enemies, bool are_subs, u32& hits) {
        bool meets = false;
#pragma unroll 1
        for (u32 j = enemies.len; j-- > 0;) {
            Swimmer enemy = enemies.get(j);
            meets |= enemy.is_at(sub_x, sub_y);
            bool is_gone = false;
            if (enemy.moves(move_speed)) {
                bool meets_now = enemy.is_at(sub_x, sub_y);
                meets |= meets_now;
                is_gone = enemy.is_out();
                u32 bullet = f_bullets.find(enemy.x, enemy.y);
                if (!meets_now && bullet < f_bullets.len) {
                    f_bullets.remove(bullet);
                    is_gone = true;
                    hits += 1;
                }
            }
            if (are_subs && enemy.shot_timer == 0) {
                enemy.shot_timer = SHOT;
                if (e_bullets.len < MOST) e_bullets.push({enemy.x, enemy.y, enemy.right, 0, 0});
            } else if (are_subs) {
                enemy.shot_timer -= 1;
            }
            if (is_gone) {
                enemies.remove(j);
            } else {
                enemies.set(j, enemy);
            }
        }
        return meets;
    }

    // Moves the enemies' bullets; returns true if one meets the player.
    __device__ bool move_enemies_bullets() {
        bool meets = false;
        u32 kept = 0;
#pragma unroll 1
        for (u32 j = 0; j < e_bullets.len; ++j) {
            Swimmer bullet = e_bullets.get(j);
            meets |= bullet.is_at(sub_x, sub_y);
            bullet.x = bullet.beside(bullet.right);
            meets |= bullet.is_at(sub_x, sub_y);
            if (!bullet.is_out()) {
                e_bullets.set(kept, bullet);
                kept += 1;
            }
        }
        e_bullets.len = kept;
        return meets;
    }

    // Uses oxygen, or surfaces; adds to the reward, or ends the game.
    __device__ void breathe(Step& outcome) {
        if (sub_y > 0) {
            oxygen -= 1;
            surface = 0;
            return;
        }
        if (surface) return;
        if (diver_count == 0) {
            outcome.terminated = true;
            return;
        }
        if (diver_count == ROOM) {
            outcome.reward += (f32)(oxygen * 10 / OXYGEN);
            diver_count = 0;
        }
        surface = 1;
        oxygen = OXYGEN;
        diver_count = diver_count - 1 > FEWEST ? diver_count - 1 : FEWEST;
        if (e_spawn_speed > 1 || move_speed > FASTEST) {
            if (move_speed > FASTEST && (ramp_index & 1) == 1) {
                move_speed -= 1;
            }
            e_spawn_speed = e_spawn_speed > 1 ? e_spawn_speed - 1 : 1;
            ramp_index += 1;
        }
    }

    __device__ Step advance(u32 action, Rng& rng) {
        spawn(rng);
        act(action);
        u32 hits = move_bullets();
        move_divers();
        bool is_over = move_enemies(e_subs, true, hits);
        is_over |= move_enemies_bullets();
        is_over |= move_enemies(e_fish, false, hits);
        e_spawn_timer -= e_spawn_timer > 0 ? 1 : 0;
        d_spawn_timer -= d_spawn_timer > 0 ? 1 : 0;
        shot_timer -= shot_timer > 0 ? 1 : 0;
        Step outcome = {(f32)hits, is_over || oxygen <= 0, false};
        breathe(outcome);
        return outcome;
    }

    __device__ static void set_if_on_board(u8* obs, u32 plane, u32 x, u32 y) {
        if (x < SIZE) set_cell(obs, plane, x, y);
    }

    // Sets the cells of a list, and those behind them if they have a trail.
    __device__ static void observe(u8* obs, const List& list, u32 plane, bool has_trail) {
#pragma unroll 1
        for (u32 j = 0; j < list.len; ++j) {
            Swimmer swimmer = list.get(j);
            set_cell(obs, plane, swimmer.x, swimmer.y);
            if (has_trail) set_if_on_board(obs, 3, swimmer.beside(!swimmer.right), swimmer.y);
        }
    }

    __device__ void observe(u8* obs) const {
        clear_planes<PLANES>(obs);
        set_cell(obs, 0, sub_x, sub_y);
        set_if_on_board(obs, 1, (sub_x + (sub_or ? 15 : 1)) & 15, sub_y);
        i32 bar = oxygen > 0 ? oxygen * 10 / OXYGEN : 0;
#pragma unroll 1
        for (i32 x = 0; x < bar; ++x) {
            set_cell(obs, 7, x, SIZE - 1);
        }
#pragma unroll 1
        for (i32 x = 0; x < diver_count; ++x) {
            set_cell(obs, 8, SIZE - 2 - x, SIZE - 1);
        }
        observe(obs, f_bullets, 2, false);
        observe(obs, e_bullets, 4, false);
        observe(obs, e_fish, 5, true);
        observe(obs, e_subs, 6, true);
        observe(obs, divers, 9, true);
    }
};

ENV_KERNELS(seaquest, MinAtar<Seaquest>)
