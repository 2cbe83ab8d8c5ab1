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
    metal::uint4 inner[256];
};
struct type_4 {
    uint inner[1024];
};
struct type_6 {
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
, threadgroup type_4& places
, threadgroup type_6& before
, constant _mslBufferSizes& _buffer_sizes [[buffer(5)]]
) {
    metal::uint2 own = metal::uint2(0u);
    uint e = {};
    uint count = {};
    uint start = {};
    metal::uint4 own_ids = {};
    uint at = {};
    uint step = 1u;
    metal::uint2 sum = {};
    metal::uint2 next = {};
    uint e_1 = {};
    uint done = {};
    uint tile = {};
    uint e_2 = {};
    uint place = {};
    uint start_1 = {};
    metal::uint4 own_ids_1 = {};
    uint at_1 = {};
    uint _e4 = control[0];
    if (_e4 != 0u) {
        return;
    }
    uint _e9 = p.experts;
    uint each = (_e9 + 255u) >> 8u;
    uint first = lid * each;
    e = first;
    bool loop_init = true;
    while(true) {
        if (!loop_init) {
            uint _e132 = e;
            e = _e132 + 1u;
        }
        loop_init = false;
        uint _e19 = e;
        if (_e19 < (first + each)) {
        } else {
            break;
        }
        {
            count = 0u;
            start = 0u;
            bool loop_init_1 = true;
            while(true) {
                if (!loop_init_1) {
                    uint _e110 = start;
                    start = _e110 + 1024u;
                }
                loop_init_1 = false;
                uint _e26 = start;
                uint _e29 = p.pairs;
                if (_e26 < _e29) {
                } else {
                    break;
                }
                {
                    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
                    uint _e31 = start;
                    uint own_pair = _e31 + (4u * lid);
                    own_ids = metal::uint4(4294967295u);
                    uint _e40 = p.pairs;
                    if (own_pair < _e40) {
                        uint _e45 = ids[own_pair];
                        own_ids.x = _e45;
                    }
                    uint _e50 = p.pairs;
                    if ((own_pair + 1u) < _e50) {
                        uint _e57 = ids[own_pair + 1u];
                        own_ids.y = _e57;
                    }
                    uint _e62 = p.pairs;
                    if ((own_pair + 2u) < _e62) {
                        uint _e69 = ids[own_pair + 2u];
                        own_ids.z = _e69;
                    }
                    uint _e74 = p.pairs;
                    if ((own_pair + 3u) < _e74) {
                        uint _e81 = ids[own_pair + 3u];
                        own_ids.w = _e81;
                    }
                    metal::uint4 _e84 = own_ids;
                    staged.inner[lid] = _e84;
                    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
                    at = 0u;
                    bool loop_init_2 = true;
                    while(true) {
                        if (!loop_init_2) {
                            uint _e107 = at;
                            at = _e107 + 1u;
                        }
                        loop_init_2 = false;
                        uint _e87 = at;
                        if (_e87 < 256u) {
                        } else {
                            break;
                        }
                        {
                            uint _e91 = at;
                            metal::uint4 _e93 = staged.inner[_e91];
                            uint _e94 = e;
                            metal::uint4 same = static_cast<metal::uint4>(_e93 == metal::uint4(_e94));
                            uint _e98 = count;
                            count = (((_e98 + same.x) + same.y) + same.z) + same.w;
                        }
                    }
                }
            }
            uint _e114 = e;
            uint _e116 = count;
            places.inner[_e114] = _e116;
            metal::uint2 _e117 = own;
            uint _e118 = count;
            uint _e119 = count;
            uint _e122 = p.of_tile;
            uint _e128 = p.of_tile;
            own = _e117 + metal::uint2(_e118, ((_e119 + _e122) - 1u) / _e128);
        }
    }
    metal::uint2 _e137 = own;
    before.inner[lid] = _e137;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    bool loop_init_3 = true;
    while(true) {
        if (!loop_init_3) {
            uint _e159 = step;
            step = _e159 << 1u;
        }
        loop_init_3 = false;
        uint _e140 = step;
        if (_e140 < 256u) {
        } else {
            break;
        }
        {
            metal::uint2 _e145 = before.inner[lid];
            sum = _e145;
            uint _e147 = step;
            if (lid >= _e147) {
                metal::uint2 _e149 = sum;
                uint _e151 = step;
                metal::uint2 _e154 = before.inner[lid - _e151];
                sum = _e149 + _e154;
            }
            metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
            metal::uint2 _e158 = sum;
            before.inner[lid] = _e158;
            metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        }
    }
    metal::uint2 _e164 = before.inner[lid];
    metal::uint2 _e165 = own;
    next = _e164 - _e165;
    e_1 = first;
    bool loop_init_4 = true;
    while(true) {
        if (!loop_init_4) {
            uint _e232 = e_1;
            e_1 = _e232 + 1u;
        }
        loop_init_4 = false;
        uint _e169 = e_1;
        if (_e169 < (first + each)) {
        } else {
            break;
        }
        {
            uint _e173 = e_1;
            uint count_1 = places.inner[_e173];
            uint _e177 = e_1;
            uint _e180 = next.x;
            places.inner[_e177] = _e180;
            done = 0u;
            bool loop_init_5 = true;
            while(true) {
                if (!loop_init_5) {
                    uint _e223 = done;
                    uint _e226 = p.of_tile;
                    done = _e223 + _e226;
                }
                loop_init_5 = false;
                uint _e183 = done;
                if (_e183 < count_1) {
                } else {
                    break;
                }
                {
                    uint _e187 = next.y;
                    uint _e191 = e_1;
                    tiles[_e187 * 3u] = _e191;
                    uint _e194 = next.y;
                    uint _e201 = next.x;
                    uint _e202 = done;
                    tiles[(_e194 * 3u) + 1u] = _e201 + _e202;
                    uint _e206 = next.y;
                    uint _e212 = done;
                    uint _e216 = p.of_tile;
                    tiles[(_e206 * 3u) + 2u] = metal::min(count_1 - _e212, _e216);
                    uint _e220 = next.y;
                    next.y = _e220 + 1u;
                }
            }
            uint _e230 = next.x;
            next.x = _e230 + count_1;
        }
    }
    uint _e238 = before.inner[255].y;
    tile = _e238 + lid;
    bool loop_init_6 = true;
    while(true) {
        if (!loop_init_6) {
            uint _e268 = tile;
            tile = _e268 + 256u;
        }
        loop_init_6 = false;
        uint _e241 = tile;
        uint _e244 = p.tiles_most;
        if (_e241 < _e244) {
        } else {
            break;
        }
        {
            uint _e247 = tile;
            tiles[_e247 * 3u] = 0u;
            uint _e253 = tile;
            tiles[(_e253 * 3u) + 1u] = 0u;
            uint _e261 = tile;
            tiles[(_e261 * 3u) + 2u] = 0u;
        }
    }
    e_2 = first;
    bool loop_init_7 = true;
    while(true) {
        if (!loop_init_7) {
            uint _e420 = e_2;
            e_2 = _e420 + 1u;
        }
        loop_init_7 = false;
        uint _e272 = e_2;
        if (_e272 < (first + each)) {
        } else {
            break;
        }
        {
            uint _e276 = e_2;
            uint _e278 = places.inner[_e276];
            place = _e278;
            start_1 = 0u;
            bool loop_init_8 = true;
            while(true) {
                if (!loop_init_8) {
                    uint _e417 = start_1;
                    start_1 = _e417 + 1024u;
                }
                loop_init_8 = false;
                uint _e282 = start_1;
                uint _e285 = p.pairs;
                if (_e282 < _e285) {
                } else {
                    break;
                }
                {
                    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
                    uint _e287 = start_1;
                    uint own_pair_1 = _e287 + (4u * lid);
                    own_ids_1 = metal::uint4(4294967295u);
                    uint _e296 = p.pairs;
                    if (own_pair_1 < _e296) {
                        uint _e301 = ids[own_pair_1];
                        own_ids_1.x = _e301;
                    }
                    uint _e306 = p.pairs;
                    if ((own_pair_1 + 1u) < _e306) {
                        uint _e313 = ids[own_pair_1 + 1u];
                        own_ids_1.y = _e313;
                    }
                    uint _e318 = p.pairs;
                    if ((own_pair_1 + 2u) < _e318) {
                        uint _e325 = ids[own_pair_1 + 2u];
                        own_ids_1.z = _e325;
                    }
                    uint _e330 = p.pairs;
                    if ((own_pair_1 + 3u) < _e330) {
                        uint _e337 = ids[own_pair_1 + 3u];
                        own_ids_1.w = _e337;
                    }
                    metal::uint4 _e340 = own_ids_1;
                    staged.inner[lid] = _e340;
                    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
                    at_1 = 0u;
                    bool loop_init_9 = true;
                    while(true) {
                        if (!loop_init_9) {
                            uint _e414 = at_1;
                            at_1 = _e414 + 1u;
                        }
                        loop_init_9 = false;
                        uint _e343 = at_1;
                        if (_e343 < 256u) {
                        } else {
                            break;
                        }
                        {
                            uint _e347 = at_1;
                            metal::uint4 four = staged.inner[_e347];
                            uint _e351 = e_2;
                            if (four.x == _e351) {
                                uint _e354 = place;
                                uint _e356 = start_1;
                                uint _e358 = at_1;
                                order[_e354] = (_e356 + (4u * _e358)) + 0u;
                                uint _e363 = place;
                                place = _e363 + 1u;
                            }
                            uint _e367 = e_2;
                            if (four.y == _e367) {
                                uint _e370 = place;
                                uint _e372 = start_1;
                                uint _e374 = at_1;
                                order[_e370] = (_e372 + (4u * _e374)) + 1u;
                                uint _e379 = place;
                                place = _e379 + 1u;
                            }
                            uint _e383 = e_2;
                            if (four.z == _e383) {
                                uint _e386 = place;
                                uint _e388 = start_1;
                                uint _e390 = at_1;
                                order[_e386] = (_e388 + (4u * _e390)) + 2u;
                                uint _e395 = place;
                                place = _e395 + 1u;
                            }
                            uint _e399 = e_2;
                            if (four.w == _e399) {
                                uint _e402 = place;
                                uint _e404 = start_1;
                                uint _e406 = at_1;
                                order[_e402] = (_e404 + (4u * _e406)) + 3u;
                                uint _e411 = place;
                                place = _e411 + 1u;
                            }
                        }
                    }
                }
            }
        }
    }
    return;
}
