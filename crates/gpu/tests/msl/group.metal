// language: metal2.4
#include <metal_stdlib>
#include <simd/simd.h>

using metal::uint;

struct _mslBufferSizes {
    uint size0;
    uint size1;
    uint size2;
    uint size3;
};

typedef uint type_1[1];
struct Parameters {
    uint pairs;
    uint experts;
    uint of_tile;
    uint tiles_most;
};
struct type_3 {
    metal::uint4 inner[64];
};
struct type_5 {
    metal::atomic_uint inner[1024];
};
struct type_7 {
    metal::uint2 inner[256];
};

struct main_Input {
};
[[max_total_threads_per_threadgroup(256)]] kernel void main_(
  uint lid [[thread_index_in_threadgroup]]
, metal::uint3 wid [[threadgroup_position_in_grid]]
, device type_1 const& ids [[buffer(1)]]
, device type_1& tiles [[buffer(2)]]
, device type_1& order [[buffer(3)]]
, device type_1 const& control [[buffer(4)]]
, constant Parameters& p [[buffer(0)]]
, threadgroup type_3& staged
, threadgroup type_5& places
, threadgroup type_7& before
, constant _mslBufferSizes& _buffer_sizes [[buffer(5)]]
) {
    uint e = {};
    uint at = {};
    metal::uint4 four = {};
    metal::uint2 own = metal::uint2(0u);
    uint e_1 = {};
    uint step = 1u;
    metal::uint2 sum = {};
    metal::uint2 next = {};
    uint e_2 = {};
    uint done = {};
    uint tile = {};
    uint soon = 4294967295u;
    uint start = 0u;
    metal::uint4 same = {};
    uint at_1 = {};
    uint _e4 = control[0];
    if (_e4 != 0u) {
        return;
    }
    e = lid;
    bool loop_init = true;
    while(true) {
        if (!loop_init) {
            uint _e17 = e;
            e = _e17 + 256u;
        }
        loop_init = false;
        uint _e8 = e;
        uint _e11 = p.experts;
        if (_e8 < _e11) {
        } else {
            break;
        }
        {
            uint _e14 = e;
            metal::atomic_store_explicit(&places.inner[_e14], 0u, metal::memory_order_relaxed);
        }
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    at = lid;
    bool loop_init_1 = true;
    while(true) {
        if (!loop_init_1) {
            uint _e124 = at;
            at = _e124 + 1024u;
        }
        loop_init_1 = false;
        uint _e21 = at;
        uint _e24 = p.pairs;
        if (_e21 < _e24) {
        } else {
            break;
        }
        {
            four = metal::uint4(4294967295u);
            uint _e31 = at;
            uint _e33 = ids[_e31];
            four.x = _e33;
            uint _e34 = at;
            uint _e39 = p.pairs;
            if ((_e34 + 256u) < _e39) {
                uint _e43 = at;
                uint _e47 = ids[_e43 + 256u];
                four.y = _e47;
            }
            uint _e48 = at;
            uint _e53 = p.pairs;
            if ((_e48 + 512u) < _e53) {
                uint _e57 = at;
                uint _e61 = ids[_e57 + 512u];
                four.z = _e61;
            }
            uint _e62 = at;
            uint _e67 = p.pairs;
            if ((_e62 + 768u) < _e67) {
                uint _e71 = at;
                uint _e75 = ids[_e71 + 768u];
                four.w = _e75;
            }
            uint _e77 = four.x;
            uint _e80 = p.experts;
            if (_e77 < _e80) {
                uint _e84 = four.x;
                uint _e87 = metal::atomic_fetch_add_explicit(&places.inner[_e84], 1u, metal::memory_order_relaxed);
            }
            uint _e89 = four.y;
            uint _e92 = p.experts;
            if (_e89 < _e92) {
                uint _e96 = four.y;
                uint _e99 = metal::atomic_fetch_add_explicit(&places.inner[_e96], 1u, metal::memory_order_relaxed);
            }
            uint _e101 = four.z;
            uint _e104 = p.experts;
            if (_e101 < _e104) {
                uint _e108 = four.z;
                uint _e111 = metal::atomic_fetch_add_explicit(&places.inner[_e108], 1u, metal::memory_order_relaxed);
            }
            uint _e113 = four.w;
            uint _e116 = p.experts;
            if (_e113 < _e116) {
                uint _e120 = four.w;
                uint _e123 = metal::atomic_fetch_add_explicit(&places.inner[_e120], 1u, metal::memory_order_relaxed);
            }
        }
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    uint _e129 = p.experts;
    uint each = (_e129 + 255u) >> 8u;
    uint first = lid * each;
    uint _e138 = p.experts;
    uint end = metal::min(first + each, _e138);
    e_1 = first;
    bool loop_init_2 = true;
    while(true) {
        if (!loop_init_2) {
            uint _e163 = e_1;
            e_1 = _e163 + 1u;
        }
        loop_init_2 = false;
        uint _e144 = e_1;
        if (_e144 < end) {
        } else {
            break;
        }
        {
            uint _e147 = e_1;
            uint count = metal::atomic_load_explicit(&places.inner[_e147], metal::memory_order_relaxed);
            metal::uint2 _e150 = own;
            uint _e153 = p.of_tile;
            uint _e159 = p.of_tile;
            own = _e150 + metal::uint2(count, ((count + _e153) - 1u) / _e159);
        }
    }
    metal::uint2 _e168 = own;
    before.inner[lid] = _e168;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    bool loop_init_3 = true;
    while(true) {
        if (!loop_init_3) {
            uint _e190 = step;
            step = _e190 << 1u;
        }
        loop_init_3 = false;
        uint _e171 = step;
        if (_e171 < 256u) {
        } else {
            break;
        }
        {
            metal::uint2 _e176 = before.inner[lid];
            sum = _e176;
            uint _e178 = step;
            if (lid >= _e178) {
                metal::uint2 _e180 = sum;
                uint _e182 = step;
                metal::uint2 _e185 = before.inner[lid - _e182];
                sum = _e180 + _e185;
            }
            metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
            metal::uint2 _e189 = sum;
            before.inner[lid] = _e189;
            metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        }
    }
    metal::uint2 _e195 = before.inner[lid];
    metal::uint2 _e196 = own;
    next = _e195 - _e196;
    e_2 = first;
    bool loop_init_4 = true;
    while(true) {
        if (!loop_init_4) {
            uint _e262 = e_2;
            e_2 = _e262 + 1u;
        }
        loop_init_4 = false;
        uint _e200 = e_2;
        if (_e200 < end) {
        } else {
            break;
        }
        {
            uint _e203 = e_2;
            uint count_1 = metal::atomic_load_explicit(&places.inner[_e203], metal::memory_order_relaxed);
            uint _e207 = e_2;
            uint _e210 = next.x;
            metal::atomic_store_explicit(&places.inner[_e207], _e210, metal::memory_order_relaxed);
            done = 0u;
            bool loop_init_5 = true;
            while(true) {
                if (!loop_init_5) {
                    uint _e253 = done;
                    uint _e256 = p.of_tile;
                    done = _e253 + _e256;
                }
                loop_init_5 = false;
                uint _e213 = done;
                if (_e213 < count_1) {
                } else {
                    break;
                }
                {
                    uint _e217 = next.y;
                    uint _e221 = e_2;
                    tiles[_e217 * 3u] = _e221;
                    uint _e224 = next.y;
                    uint _e231 = next.x;
                    uint _e232 = done;
                    tiles[(_e224 * 3u) + 1u] = _e231 + _e232;
                    uint _e236 = next.y;
                    uint _e242 = done;
                    uint _e246 = p.of_tile;
                    tiles[(_e236 * 3u) + 2u] = metal::min(count_1 - _e242, _e246);
                    uint _e250 = next.y;
                    next.y = _e250 + 1u;
                }
            }
            uint _e260 = next.x;
            next.x = _e260 + count_1;
        }
    }
    uint _e268 = before.inner[255].y;
    tile = _e268 + lid;
    bool loop_init_6 = true;
    while(true) {
        if (!loop_init_6) {
            uint _e298 = tile;
            tile = _e298 + 256u;
        }
        loop_init_6 = false;
        uint _e271 = tile;
        uint _e274 = p.tiles_most;
        if (_e271 < _e274) {
        } else {
            break;
        }
        {
            uint _e277 = tile;
            tiles[_e277 * 3u] = 0u;
            uint _e283 = tile;
            tiles[(_e283 * 3u) + 1u] = 0u;
            uint _e291 = tile;
            tiles[(_e291 * 3u) + 2u] = 0u;
        }
    }
    uint _e305 = p.pairs;
    if (lid < _e305) {
        uint _e309 = ids[lid];
        soon = _e309;
    }
    bool loop_init_7 = true;
    while(true) {
        if (!loop_init_7) {
            uint _e409 = start;
            start = _e409 + 256u;
        }
        loop_init_7 = false;
        uint _e312 = start;
        uint _e315 = p.pairs;
        if (_e312 < _e315) {
        } else {
            break;
        }
        {
            uint id = soon;
            uint _e318 = start;
            uint pair = _e318 + lid;
            soon = 4294967295u;
            uint _e325 = p.pairs;
            if ((pair + 256u) < _e325) {
                uint _e331 = ids[pair + 256u];
                soon = _e331;
            }
            staged.inner[lid >> 2u][lid & 3u] = id;
            metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
            same = metal::uint4(0u);
            uint before_own = lid >> 2u;
            at_1 = 0u;
            bool loop_init_8 = true;
            while(true) {
                if (!loop_init_8) {
                    uint _e357 = at_1;
                    at_1 = _e357 + 1u;
                }
                loop_init_8 = false;
                uint _e346 = at_1;
                if (_e346 < before_own) {
                } else {
                    break;
                }
                {
                    metal::uint4 _e348 = same;
                    uint _e350 = at_1;
                    metal::uint4 _e352 = staged.inner[_e350];
                    same = _e348 + static_cast<metal::uint4>(_e352 == metal::uint4(id));
                }
            }
            metal::uint4 _e362 = staged.inner[before_own];
            metal::uint4 last = static_cast<metal::uint4>(_e362 == metal::uint4(id));
            metal::uint4 _e366 = same;
            same = _e366 + metal::select(metal::uint4(0u), last, metal::uint4(0u, 1u, 2u, 3u) < metal::uint4(lid & 3u));
            uint _e382 = p.experts;
            if (id < _e382) {
                uint _e387 = metal::atomic_load_explicit(&places.inner[id], metal::memory_order_relaxed);
                uint _e389 = same.x;
                uint _e392 = same.y;
                uint _e395 = same.z;
                uint _e398 = same.w;
                order[(((_e387 + _e389) + _e392) + _e395) + _e398] = pair;
            }
            metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
            uint _e403 = p.experts;
            if (id < _e403) {
                uint _e408 = metal::atomic_fetch_add_explicit(&places.inner[id], 1u, metal::memory_order_relaxed);
            }
        }
    }
    return;
}
