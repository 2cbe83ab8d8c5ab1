// language: metal2.4
#include <metal_stdlib>
#include <simd/simd.h>

using metal::uint;

struct _mslBufferSizes {
    uint size0;
    uint size1;
    uint size2;
    uint size3;
    uint size4;
    uint size5;
    uint size6;
    uint size7;
    uint size8;
    uint size9;
    uint size10;
    uint size11;
    uint size12;
    uint size13;
    uint size14;
};

typedef metal::uint4 type_2[1];
typedef uint type_3[1];
typedef float type_5[1];
typedef metal::float4 type_7[1];
struct Parameters {
    uint rows;
    uint columns;
    uint row_words;
    uint row_groups;
    uint slot_words;
    uint w0_;
    uint s0_;
    uint b0_;
    uint w1_;
    uint s1_;
    uint b1_;
    uint experts;
    uint k;
    uint normalise;
    uint first_id;
    uint table_start;
    uint flag;
};
struct type_8 {
    metal::float4 inner[576];
};
struct type_9 {
    float inner[1024];
};
struct type_10 {
    float inner[128];
};
struct type_11 {
    float inner[64];
};
struct type_12 {
    uint inner[32];
};
struct type_13 {
    float inner[32];
};
struct type_14 {
    float inner[256];
};

float number(
    uint word,
    uint index
) {
    return as_type<float>((word >> ((index & 1u) * 16u)) << 16u);
}

float sixteen(
    uint first,
    uint step_1,
    threadgroup type_14& red
) {
    float _e4 = red.inner[first];
    float _e8 = red.inner[first + step_1];
    float _e15 = red.inner[first + (2u * step_1)];
    float _e21 = red.inner[first + (3u * step_1)];
    float a = (_e4 + _e8) + (_e15 + _e21);
    float _e29 = red.inner[first + (4u * step_1)];
    float _e35 = red.inner[first + (5u * step_1)];
    float _e42 = red.inner[first + (6u * step_1)];
    float _e48 = red.inner[first + (7u * step_1)];
    float b = (_e29 + _e35) + (_e42 + _e48);
    float _e56 = red.inner[first + (8u * step_1)];
    float _e62 = red.inner[first + (9u * step_1)];
    float _e69 = red.inner[first + (10u * step_1)];
    float _e75 = red.inner[first + (11u * step_1)];
    float c = (_e56 + _e62) + (_e69 + _e75);
    float _e83 = red.inner[first + (12u * step_1)];
    float _e89 = red.inner[first + (13u * step_1)];
    float _e96 = red.inner[first + (14u * step_1)];
    float _e102 = red.inner[first + (15u * step_1)];
    float d = (_e83 + _e89) + (_e96 + _e102);
    return (a + b) + (c + d);
}

float tree_sum(
    uint lid_1,
    threadgroup type_14& red
) {
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    float _e4 = sixteen(lid_1 & 15u, 16u, red);
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if (lid_1 < 16u) {
        red.inner[lid_1] = _e4;
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    float _e11 = sixteen(0u, 1u, red);
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    return _e11;
}

float tree_max(
    uint lid_2,
    threadgroup type_14& red
) {
    uint half_ = 128u;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    bool loop_init = true;
    while(true) {
        if (!loop_init) {
            uint _e19 = half_;
            half_ = _e19 >> 1u;
        }
        loop_init = false;
        uint _e3 = half_;
        if (_e3 > 0u) {
        } else {
            break;
        }
        {
            uint _e6 = half_;
            if (lid_2 < _e6) {
                float _e12 = red.inner[lid_2];
                uint _e14 = half_;
                float _e17 = red.inner[lid_2 + _e14];
                red.inner[lid_2] = metal::max(_e12, _e17);
            }
            metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        }
    }
    float found = red.inner[0];
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    return found;
}
uint naga_f2u32(float value) {
    return static_cast<uint>(metal::clamp(value, 0.0, 4294967000.0));
}


struct main_Input {
};
[[max_total_threads_per_threadgroup(256)]] kernel void main_(
  uint lid [[thread_index_in_threadgroup]]
, metal::uint3 wid [[threadgroup_position_in_grid]]
, device type_2 const& slab0_ [[buffer(1)]]
, device type_2 const& slab1_ [[buffer(2)]]
, device type_3 const& table [[buffer(3)]]
, device type_5 const& logits [[buffer(4)]]
, device type_7 const& x [[buffer(5)]]
, device type_2 const& w0_ [[buffer(6)]]
, device type_3 const& scales0_ [[buffer(7)]]
, device type_3 const& biases0_ [[buffer(8)]]
, device type_2 const& w1_ [[buffer(9)]]
, device type_3 const& scales1_ [[buffer(10)]]
, device type_3 const& biases1_ [[buffer(11)]]
, device type_3& ids [[buffer(12)]]
, device type_5& weights [[buffer(13)]]
, device type_5& y [[buffer(14)]]
, device type_3& control [[buffer(15)]]
, constant Parameters& p [[buffer(0)]]
, threadgroup type_8& staged
, threadgroup type_9& sums
, threadgroup type_10& part_1
, threadgroup type_11& fin
, threadgroup uint& raised
, threadgroup uint& own
, threadgroup uint& place_of
, threadgroup type_12& chosen
, threadgroup type_13& best
, threadgroup type_14& red
, constant _mslBufferSizes& _buffer_sizes [[buffer(16)]]
) {
    metal::uint4 words = metal::uint4(0u);
    uint part = 0u;
    bool local = {};
    bool local_1 = {};
    uint e = {};
    metal::uint4 before = {};
    uint step = {};
    uint at = {};
    metal::uint4 before_1 = {};
    uint other = {};
    uint place = 0u;
    uint other_1 = 0u;
    bool local_2 = {};
    float greatest = -300000000000000000000000000000000000000.0;
    uint e_1 = {};
    float sum = 0.0;
    uint e_2 = {};
    uint place_1 = 0u;
    uint other_2 = 0u;
    float all = {};
    uint place_2 = 0u;
    float acc0_ = 0.0;
    float acc1_ = 0.0;
    float acc2_ = 0.0;
    float acc3_ = 0.0;
    metal::uint4 n_u0_0_0_ = {};
    uint n_sw0_0_ = {};
    uint n_bw0_0_ = {};
    metal::uint4 n_u1_0_0_ = {};
    uint n_sw1_0_ = {};
    uint n_bw1_0_ = {};
    metal::uint4 n_u2_0_0_ = {};
    uint n_sw2_0_ = {};
    uint n_bw2_0_ = {};
    metal::uint4 n_u3_0_0_ = {};
    uint n_sw3_0_ = {};
    uint n_bw3_0_ = {};
    metal::uint4 n_u0_0_1_ = {};
    uint n_sw0_1_ = {};
    uint n_bw0_1_ = {};
    metal::uint4 n_u1_0_1_ = {};
    uint n_sw1_1_ = {};
    uint n_bw1_1_ = {};
    metal::uint4 n_u2_0_1_ = {};
    uint n_sw2_1_ = {};
    uint n_bw2_1_ = {};
    metal::uint4 n_u3_0_1_ = {};
    uint n_sw3_1_ = {};
    uint n_bw3_1_ = {};
    uint begin = 0u;
    uint vec_at = {};
    float all0_0_ = {};
    float dot0_0_ = {};
    float dot1_0_ = {};
    float dot2_0_ = {};
    float dot3_0_ = {};
    float all0_0_1 = {};
    float dot0_0_1 = {};
    float dot1_0_1 = {};
    float dot2_0_1 = {};
    float dot3_0_1 = {};
    uint _e4 = p.rows;
    uint tiles = (_e4 + 15u) / 16u;
    uint rank = wid.x / tiles;
    if (lid == 0u) {
        uint _e16 = control[0];
        raised = _e16;
        own = 0u;
    }
    uint _e21 = p.k;
    if (rank == _e21) {
        if (lid == 0u) {
            place_of = 33554433u;
        }
    } else {
        bool loop_init_1 = true;
        while(true) {
            if (!loop_init_1) {
                uint _e79 = part;
                part = _e79 + 1u;
            }
            loop_init_1 = false;
            uint _e32 = part;
            if (_e32 < 4u) {
            } else {
                break;
            }
            {
                uint _e35 = part;
                uint e_3 = (_e35 * 256u) + lid;
                uint _e41 = p.experts;
                if (e_3 < _e41) {
                    uint _e43 = part;
                    uint _e48 = p.table_start;
                    uint _e51 = table[_e48 + e_3];
                    words[_e43] = _e51;
                    float value = logits[e_3];
                    bool number_1 = (as_type<uint>(value) & 2147483647u) < 2139095040u;
                    staged.inner[e_3 >> 2u][e_3 & 3u] = number_1 ? metal::max(value, -330000000000000000000000000000000000000.0) : -300000000000000000000000000000000000000.0;
                } else {
                    staged.inner[e_3 >> 2u][e_3 & 3u] = -340000000000000000000000000000000000000.0;
                }
            }
        }
        uint _e84 = p.experts;
        uint parts = (_e84 + 31u) >> 5u;
        uint _e91 = p.k;
        uint left = parts * _e91;
        if (lid < 4u) {
            local = (left & 3u) != 0u;
        } else {
            local = false;
        }
        bool _e102 = local;
        if (_e102) {
            local_1 = (left & 3u) <= lid;
        } else {
            local_1 = false;
        }
        bool _e109 = local_1;
        if (_e109) {
            staged.inner[256u + (left >> 2u)][lid] = -340000000000000000000000000000000000000.0;
        }
        metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        e = lid;
        bool loop_init_2 = true;
        while(true) {
            if (!loop_init_2) {
                uint _e232 = e;
                e = _e232 + 256u;
            }
            loop_init_2 = false;
            uint _e119 = e;
            if (_e119 < (parts * 32u)) {
            } else {
                break;
            }
            {
                uint _e124 = e;
                uint _e128 = e;
                float mine = staged.inner[_e124 >> 2u][_e128 & 3u];
                before = metal::uint4(0u);
                step = 0u;
                bool loop_init_3 = true;
                while(true) {
                    if (!loop_init_3) {
                        uint _e186 = step;
                        step = _e186 + 1u;
                    }
                    loop_init_3 = false;
                    uint _e138 = step;
                    if (_e138 < 8u) {
                    } else {
                        break;
                    }
                    {
                        uint _e141 = e;
                        uint _e146 = step;
                        uint other_3 = ((_e141 >> 5u) * 8u) + _e146;
                        metal::float4 theirs = staged.inner[other_3];
                        metal::uint4 numbers = metal::uint4(other_3 * 4u) + metal::uint4(0u, 1u, 2u, 3u);
                        uint _e171 = e;
                        metal::uint4 same = metal::select(metal::uint4(0u), metal::uint4(1u), theirs == metal::float4(mine)) * metal::select(metal::uint4(0u), metal::uint4(1u), numbers < metal::uint4(_e171));
                        metal::uint4 _e176 = before;
                        before = (_e176 + same) + metal::select(metal::uint4(0u), metal::uint4(1u), theirs > metal::float4(mine));
                    }
                }
                uint _e190 = before.x;
                uint _e192 = before.y;
                uint _e195 = before.z;
                uint _e197 = before.w;
                uint place_3 = (_e190 + _e192) + (_e195 + _e197);
                uint _e202 = p.k;
                if (place_3 < _e202) {
                    uint _e204 = e;
                    uint _e209 = p.k;
                    uint to = ((_e204 >> 5u) * _e209) + place_3;
                    staged.inner[256u + (to >> 2u)][to & 3u] = mine;
                    uint _e230 = e;
                    staged.inner[384u + (to >> 2u)][to & 3u] = static_cast<float>(_e230);
                }
            }
        }
        metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        at = lid;
        bool loop_init_4 = true;
        while(true) {
            if (!loop_init_4) {
                uint _e331 = at;
                at = _e331 + 256u;
            }
            loop_init_4 = false;
            uint _e236 = at;
            if (_e236 < left) {
            } else {
                break;
            }
            {
                uint _e240 = at;
                uint _e245 = at;
                float mine_1 = staged.inner[256u + (_e240 >> 2u)][_e245 & 3u];
                uint _e252 = at;
                uint _e257 = at;
                float number_2 = staged.inner[384u + (_e252 >> 2u)][_e257 & 3u];
                before_1 = metal::uint4(0u);
                other = 0u;
                bool loop_init_5 = true;
                while(true) {
                    if (!loop_init_5) {
                        uint _e310 = other;
                        other = _e310 + 1u;
                    }
                    loop_init_5 = false;
                    uint _e267 = other;
                    if (_e267 < ((left + 3u) >> 2u)) {
                    } else {
                        break;
                    }
                    {
                        uint _e275 = other;
                        metal::float4 theirs_1 = staged.inner[256u + _e275];
                        uint _e292 = other;
                        metal::float4 _e295 = staged.inner[384u + _e292];
                        metal::uint4 same_1 = metal::select(metal::uint4(0u), metal::uint4(1u), theirs_1 == metal::float4(mine_1)) * metal::select(metal::uint4(0u), metal::uint4(1u), _e295 < metal::float4(number_2));
                        metal::uint4 _e300 = before_1;
                        before_1 = (_e300 + same_1) + metal::select(metal::uint4(0u), metal::uint4(1u), theirs_1 > metal::float4(mine_1));
                    }
                }
                uint _e314 = before_1.x;
                uint _e316 = before_1.y;
                uint _e319 = before_1.z;
                uint _e321 = before_1.w;
                uint place_4 = (_e314 + _e316) + (_e319 + _e321);
                uint _e326 = p.k;
                if (place_4 < _e326) {
                    chosen.inner[place_4] = naga_f2u32(number_2);
                }
            }
        }
        metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        uint _e336 = p.k;
        if (lid < _e336) {
            uint e_4 = chosen.inner[lid];
            bool loop_init_6 = true;
            while(true) {
                if (!loop_init_6) {
                    uint _e358 = other_1;
                    other_1 = _e358 + 1u;
                }
                loop_init_6 = false;
                uint _e345 = other_1;
                uint _e348 = p.k;
                if (_e345 < _e348) {
                } else {
                    break;
                }
                {
                    uint _e351 = other_1;
                    uint _e353 = chosen.inner[_e351];
                    if (_e353 < e_4) {
                        uint _e355 = place;
                        place = _e355 + 1u;
                    }
                }
            }
            uint _e361 = place;
            if (_e361 == rank) {
                own = e_4;
            }
        }
        metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        uint _e365 = own;
        if (lid == (_e365 & 255u)) {
            uint _e371 = own;
            uint _e375 = words[_e371 >> 8u];
            place_of = _e375;
        }
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    uint unnamed = raised;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if (unnamed != 0u) {
        uint _e384 = p.flag;
        local_2 = unnamed != _e384;
    } else {
        local_2 = false;
    }
    bool _e387 = local_2;
    if (_e387) {
        return;
    }
    uint _e390 = p.k;
    if (rank == (_e390 + 1u)) {
        e_1 = lid;
        bool loop_init_7 = true;
        while(true) {
            if (!loop_init_7) {
                uint _e426 = e_1;
                e_1 = _e426 + 256u;
            }
            loop_init_7 = false;
            uint _e397 = e_1;
            uint _e400 = p.experts;
            if (_e397 < _e400) {
            } else {
                break;
            }
            {
                uint _e403 = e_1;
                float value_1 = logits[_e403];
                if ((as_type<uint>(value_1) & 2147483647u) >= 2139095040u) {
                    control[1] = 1u;
                }
                float _e414 = greatest;
                uint _e416 = e_1;
                uint _e420 = e_1;
                float _e424 = staged.inner[_e416 >> 2u][_e420 & 3u];
                greatest = metal::max(_e414, _e424);
            }
        }
        float _e431 = greatest;
        red.inner[lid] = _e431;
        float _e432 = tree_max(lid, red);
        greatest = _e432;
        e_2 = lid;
        bool loop_init_8 = true;
        while(true) {
            if (!loop_init_8) {
                uint _e456 = e_2;
                e_2 = _e456 + 256u;
            }
            loop_init_8 = false;
            uint _e436 = e_2;
            uint _e439 = p.experts;
            if (_e436 < _e439) {
            } else {
                break;
            }
            {
                float _e441 = sum;
                uint _e443 = e_2;
                uint _e447 = e_2;
                float _e451 = staged.inner[_e443 >> 2u][_e447 & 3u];
                float _e452 = greatest;
                sum = _e441 + metal::exp(_e451 - _e452);
            }
        }
        float _e461 = sum;
        red.inner[lid] = _e461;
        float _e462 = tree_sum(lid, red);
        sum = _e462;
        uint _e465 = p.k;
        if (lid < _e465) {
            uint e_5 = chosen.inner[lid];
            bool loop_init_9 = true;
            while(true) {
                if (!loop_init_9) {
                    uint _e487 = other_2;
                    other_2 = _e487 + 1u;
                }
                loop_init_9 = false;
                uint _e474 = other_2;
                uint _e477 = p.k;
                if (_e474 < _e477) {
                } else {
                    break;
                }
                {
                    uint _e480 = other_2;
                    uint _e482 = chosen.inner[_e480];
                    if (_e482 < e_5) {
                        uint _e484 = place_1;
                        place_1 = _e484 + 1u;
                    }
                }
            }
            uint _e491 = place_1;
            float _e500 = staged.inner[e_5 >> 2u][e_5 & 3u];
            float _e501 = greatest;
            best.inner[_e491] = metal::exp(_e500 - _e501);
            uint _e507 = p.first_id;
            uint _e508 = place_1;
            ids[_e507 + _e508] = e_5;
            uint _e514 = p.table_start;
            uint _e517 = table[_e514 + e_5];
            if (_e517 == 0u) {
                uint _e524 = p.flag;
                control[0] = _e524;
            }
        }
        metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        uint _e527 = p.k;
        if (lid < _e527) {
            float _e529 = sum;
            all = _e529;
            uint _e533 = p.normalise;
            if (_e533 != 0u) {
                all = 0.0;
                bool loop_init_10 = true;
                while(true) {
                    if (!loop_init_10) {
                        uint _e550 = place_2;
                        place_2 = _e550 + 1u;
                    }
                    loop_init_10 = false;
                    uint _e539 = place_2;
                    uint _e542 = p.k;
                    if (_e539 < _e542) {
                    } else {
                        break;
                    }
                    {
                        float _e544 = all;
                        uint _e546 = place_2;
                        float _e548 = best.inner[_e546];
                        all = _e544 + _e548;
                    }
                }
            }
            float _e557 = best.inner[lid];
            float _e558 = all;
            weights[lid] = _e557 / _e558;
        }
        return;
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    uint unnamed_1 = place_of;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if (unnamed_1 == 0u) {
        return;
    }
    uint _e570 = p.slot_words;
    uint base = ((unnamed_1 & 16777215u) - 1u) * _e570;
    uint lane = lid & 31u;
    uint team = lid >> 5u;
    uint _e578 = p.columns;
    uint units = _e578 / 32u;
    uint first_1 = (((wid.x % tiles) * 8u) + team) * 2u;
    uint _e600 = p.rows;
    uint row0_ = metal::min(first_1 + 0u, _e600 - 1u);
    uint _e606 = p.w0_;
    uint m0_ = base + _e606;
    uint _e610 = p.row_words;
    uint w0_1 = row0_ * _e610;
    uint _e614 = p.row_groups;
    uint s0_ = row0_ * _e614;
    uint _e618 = p.s0_;
    uint scales0_1 = base + _e618;
    uint _e622 = p.b0_;
    uint biases0_1 = base + _e622;
    uint _e628 = p.rows;
    uint row1_ = metal::min(first_1 + 1u, _e628 - 1u);
    uint _e634 = p.w0_;
    uint m1_ = base + _e634;
    uint _e638 = p.row_words;
    uint w1_1 = row1_ * _e638;
    uint _e642 = p.row_groups;
    uint s1_ = row1_ * _e642;
    uint _e646 = p.s0_;
    uint scales1_1 = base + _e646;
    uint _e650 = p.b0_;
    uint biases1_1 = base + _e650;
    uint _e656 = p.rows;
    uint row2_ = metal::min(first_1 + 0u, _e656 - 1u);
    uint _e662 = p.w1_;
    uint m2_ = base + _e662;
    uint _e666 = p.row_words;
    uint w2_ = row2_ * _e666;
    uint _e670 = p.row_groups;
    uint s2_ = row2_ * _e670;
    uint _e674 = p.s1_;
    uint scales2_ = base + _e674;
    uint _e678 = p.b1_;
    uint biases2_ = base + _e678;
    uint _e684 = p.rows;
    uint row3_ = metal::min(first_1 + 1u, _e684 - 1u);
    uint _e690 = p.w1_;
    uint m3_ = base + _e690;
    uint _e694 = p.row_words;
    uint w3_ = row3_ * _e694;
    uint _e698 = p.row_groups;
    uint s3_ = row3_ * _e698;
    uint _e702 = p.s1_;
    uint scales3_ = base + _e702;
    uint _e706 = p.b1_;
    uint biases3_ = base + _e706;
    {
        uint unit0_ = metal::min((0u + 0u) + lane, units - 1u);
        uint unit1_ = metal::min((0u + 32u) + lane, units - 1u);
        switch(unnamed_1 >> 24u) {
            case 0u: {
                metal::uint4 _e755 = slab0_[((m0_ / 4u) + (w0_1 / 4u)) + unit0_];
                n_u0_0_0_ = _e755;
                uint _e779 = slab0_[(scales0_1 + ((s0_ + ((unit0_ * 32u) / 64u)) >> 1u)) / 4u][(scales0_1 + ((s0_ + ((unit0_ * 32u) / 64u)) >> 1u)) % 4u];
                n_sw0_0_ = _e779;
                uint _e803 = slab0_[(biases0_1 + ((s0_ + ((unit0_ * 32u) / 64u)) >> 1u)) / 4u][(biases0_1 + ((s0_ + ((unit0_ * 32u) / 64u)) >> 1u)) % 4u];
                n_bw0_0_ = _e803;
                metal::uint4 _e812 = slab0_[((m1_ / 4u) + (w1_1 / 4u)) + unit0_];
                n_u1_0_0_ = _e812;
                uint _e836 = slab0_[(scales1_1 + ((s1_ + ((unit0_ * 32u) / 64u)) >> 1u)) / 4u][(scales1_1 + ((s1_ + ((unit0_ * 32u) / 64u)) >> 1u)) % 4u];
                n_sw1_0_ = _e836;
                uint _e860 = slab0_[(biases1_1 + ((s1_ + ((unit0_ * 32u) / 64u)) >> 1u)) / 4u][(biases1_1 + ((s1_ + ((unit0_ * 32u) / 64u)) >> 1u)) % 4u];
                n_bw1_0_ = _e860;
                metal::uint4 _e869 = slab0_[((m2_ / 4u) + (w2_ / 4u)) + unit0_];
                n_u2_0_0_ = _e869;
                uint _e893 = slab0_[(scales2_ + ((s2_ + ((unit0_ * 32u) / 64u)) >> 1u)) / 4u][(scales2_ + ((s2_ + ((unit0_ * 32u) / 64u)) >> 1u)) % 4u];
                n_sw2_0_ = _e893;
                uint _e917 = slab0_[(biases2_ + ((s2_ + ((unit0_ * 32u) / 64u)) >> 1u)) / 4u][(biases2_ + ((s2_ + ((unit0_ * 32u) / 64u)) >> 1u)) % 4u];
                n_bw2_0_ = _e917;
                metal::uint4 _e926 = slab0_[((m3_ / 4u) + (w3_ / 4u)) + unit0_];
                n_u3_0_0_ = _e926;
                uint _e950 = slab0_[(scales3_ + ((s3_ + ((unit0_ * 32u) / 64u)) >> 1u)) / 4u][(scales3_ + ((s3_ + ((unit0_ * 32u) / 64u)) >> 1u)) % 4u];
                n_sw3_0_ = _e950;
                uint _e974 = slab0_[(biases3_ + ((s3_ + ((unit0_ * 32u) / 64u)) >> 1u)) / 4u][(biases3_ + ((s3_ + ((unit0_ * 32u) / 64u)) >> 1u)) % 4u];
                n_bw3_0_ = _e974;
                metal::uint4 _e983 = slab0_[((m0_ / 4u) + (w0_1 / 4u)) + unit1_];
                n_u0_0_1_ = _e983;
                uint _e1007 = slab0_[(scales0_1 + ((s0_ + ((unit1_ * 32u) / 64u)) >> 1u)) / 4u][(scales0_1 + ((s0_ + ((unit1_ * 32u) / 64u)) >> 1u)) % 4u];
                n_sw0_1_ = _e1007;
                uint _e1031 = slab0_[(biases0_1 + ((s0_ + ((unit1_ * 32u) / 64u)) >> 1u)) / 4u][(biases0_1 + ((s0_ + ((unit1_ * 32u) / 64u)) >> 1u)) % 4u];
                n_bw0_1_ = _e1031;
                metal::uint4 _e1040 = slab0_[((m1_ / 4u) + (w1_1 / 4u)) + unit1_];
                n_u1_0_1_ = _e1040;
                uint _e1064 = slab0_[(scales1_1 + ((s1_ + ((unit1_ * 32u) / 64u)) >> 1u)) / 4u][(scales1_1 + ((s1_ + ((unit1_ * 32u) / 64u)) >> 1u)) % 4u];
                n_sw1_1_ = _e1064;
                uint _e1088 = slab0_[(biases1_1 + ((s1_ + ((unit1_ * 32u) / 64u)) >> 1u)) / 4u][(biases1_1 + ((s1_ + ((unit1_ * 32u) / 64u)) >> 1u)) % 4u];
                n_bw1_1_ = _e1088;
                metal::uint4 _e1097 = slab0_[((m2_ / 4u) + (w2_ / 4u)) + unit1_];
                n_u2_0_1_ = _e1097;
                uint _e1121 = slab0_[(scales2_ + ((s2_ + ((unit1_ * 32u) / 64u)) >> 1u)) / 4u][(scales2_ + ((s2_ + ((unit1_ * 32u) / 64u)) >> 1u)) % 4u];
                n_sw2_1_ = _e1121;
                uint _e1145 = slab0_[(biases2_ + ((s2_ + ((unit1_ * 32u) / 64u)) >> 1u)) / 4u][(biases2_ + ((s2_ + ((unit1_ * 32u) / 64u)) >> 1u)) % 4u];
                n_bw2_1_ = _e1145;
                metal::uint4 _e1154 = slab0_[((m3_ / 4u) + (w3_ / 4u)) + unit1_];
                n_u3_0_1_ = _e1154;
                uint _e1178 = slab0_[(scales3_ + ((s3_ + ((unit1_ * 32u) / 64u)) >> 1u)) / 4u][(scales3_ + ((s3_ + ((unit1_ * 32u) / 64u)) >> 1u)) % 4u];
                n_sw3_1_ = _e1178;
                uint _e1202 = slab0_[(biases3_ + ((s3_ + ((unit1_ * 32u) / 64u)) >> 1u)) / 4u][(biases3_ + ((s3_ + ((unit1_ * 32u) / 64u)) >> 1u)) % 4u];
                n_bw3_1_ = _e1202;
                break;
            }
            case 1u: {
                metal::uint4 _e1211 = slab1_[((m0_ / 4u) + (w0_1 / 4u)) + unit0_];
                n_u0_0_0_ = _e1211;
                uint _e1235 = slab1_[(scales0_1 + ((s0_ + ((unit0_ * 32u) / 64u)) >> 1u)) / 4u][(scales0_1 + ((s0_ + ((unit0_ * 32u) / 64u)) >> 1u)) % 4u];
                n_sw0_0_ = _e1235;
                uint _e1259 = slab1_[(biases0_1 + ((s0_ + ((unit0_ * 32u) / 64u)) >> 1u)) / 4u][(biases0_1 + ((s0_ + ((unit0_ * 32u) / 64u)) >> 1u)) % 4u];
                n_bw0_0_ = _e1259;
                metal::uint4 _e1268 = slab1_[((m1_ / 4u) + (w1_1 / 4u)) + unit0_];
                n_u1_0_0_ = _e1268;
                uint _e1292 = slab1_[(scales1_1 + ((s1_ + ((unit0_ * 32u) / 64u)) >> 1u)) / 4u][(scales1_1 + ((s1_ + ((unit0_ * 32u) / 64u)) >> 1u)) % 4u];
                n_sw1_0_ = _e1292;
                uint _e1316 = slab1_[(biases1_1 + ((s1_ + ((unit0_ * 32u) / 64u)) >> 1u)) / 4u][(biases1_1 + ((s1_ + ((unit0_ * 32u) / 64u)) >> 1u)) % 4u];
                n_bw1_0_ = _e1316;
                metal::uint4 _e1325 = slab1_[((m2_ / 4u) + (w2_ / 4u)) + unit0_];
                n_u2_0_0_ = _e1325;
                uint _e1349 = slab1_[(scales2_ + ((s2_ + ((unit0_ * 32u) / 64u)) >> 1u)) / 4u][(scales2_ + ((s2_ + ((unit0_ * 32u) / 64u)) >> 1u)) % 4u];
                n_sw2_0_ = _e1349;
                uint _e1373 = slab1_[(biases2_ + ((s2_ + ((unit0_ * 32u) / 64u)) >> 1u)) / 4u][(biases2_ + ((s2_ + ((unit0_ * 32u) / 64u)) >> 1u)) % 4u];
                n_bw2_0_ = _e1373;
                metal::uint4 _e1382 = slab1_[((m3_ / 4u) + (w3_ / 4u)) + unit0_];
                n_u3_0_0_ = _e1382;
                uint _e1406 = slab1_[(scales3_ + ((s3_ + ((unit0_ * 32u) / 64u)) >> 1u)) / 4u][(scales3_ + ((s3_ + ((unit0_ * 32u) / 64u)) >> 1u)) % 4u];
                n_sw3_0_ = _e1406;
                uint _e1430 = slab1_[(biases3_ + ((s3_ + ((unit0_ * 32u) / 64u)) >> 1u)) / 4u][(biases3_ + ((s3_ + ((unit0_ * 32u) / 64u)) >> 1u)) % 4u];
                n_bw3_0_ = _e1430;
                metal::uint4 _e1439 = slab1_[((m0_ / 4u) + (w0_1 / 4u)) + unit1_];
                n_u0_0_1_ = _e1439;
                uint _e1463 = slab1_[(scales0_1 + ((s0_ + ((unit1_ * 32u) / 64u)) >> 1u)) / 4u][(scales0_1 + ((s0_ + ((unit1_ * 32u) / 64u)) >> 1u)) % 4u];
                n_sw0_1_ = _e1463;
                uint _e1487 = slab1_[(biases0_1 + ((s0_ + ((unit1_ * 32u) / 64u)) >> 1u)) / 4u][(biases0_1 + ((s0_ + ((unit1_ * 32u) / 64u)) >> 1u)) % 4u];
                n_bw0_1_ = _e1487;
                metal::uint4 _e1496 = slab1_[((m1_ / 4u) + (w1_1 / 4u)) + unit1_];
                n_u1_0_1_ = _e1496;
                uint _e1520 = slab1_[(scales1_1 + ((s1_ + ((unit1_ * 32u) / 64u)) >> 1u)) / 4u][(scales1_1 + ((s1_ + ((unit1_ * 32u) / 64u)) >> 1u)) % 4u];
                n_sw1_1_ = _e1520;
                uint _e1544 = slab1_[(biases1_1 + ((s1_ + ((unit1_ * 32u) / 64u)) >> 1u)) / 4u][(biases1_1 + ((s1_ + ((unit1_ * 32u) / 64u)) >> 1u)) % 4u];
                n_bw1_1_ = _e1544;
                metal::uint4 _e1553 = slab1_[((m2_ / 4u) + (w2_ / 4u)) + unit1_];
                n_u2_0_1_ = _e1553;
                uint _e1577 = slab1_[(scales2_ + ((s2_ + ((unit1_ * 32u) / 64u)) >> 1u)) / 4u][(scales2_ + ((s2_ + ((unit1_ * 32u) / 64u)) >> 1u)) % 4u];
                n_sw2_1_ = _e1577;
                uint _e1601 = slab1_[(biases2_ + ((s2_ + ((unit1_ * 32u) / 64u)) >> 1u)) / 4u][(biases2_ + ((s2_ + ((unit1_ * 32u) / 64u)) >> 1u)) % 4u];
                n_bw2_1_ = _e1601;
                metal::uint4 _e1610 = slab1_[((m3_ / 4u) + (w3_ / 4u)) + unit1_];
                n_u3_0_1_ = _e1610;
                uint _e1634 = slab1_[(scales3_ + ((s3_ + ((unit1_ * 32u) / 64u)) >> 1u)) / 4u][(scales3_ + ((s3_ + ((unit1_ * 32u) / 64u)) >> 1u)) % 4u];
                n_sw3_1_ = _e1634;
                uint _e1658 = slab1_[(biases3_ + ((s3_ + ((unit1_ * 32u) / 64u)) >> 1u)) / 4u][(biases3_ + ((s3_ + ((unit1_ * 32u) / 64u)) >> 1u)) % 4u];
                n_bw3_1_ = _e1658;
                break;
            }
            case 2u: {
                metal::uint4 _e1664 = w0_[(w0_1 / 4u) + unit0_];
                n_u0_0_0_ = _e1664;
                uint _e1674 = scales0_[(s0_ + ((unit0_ * 32u) / 64u)) >> 1u];
                n_sw0_0_ = _e1674;
                uint _e1684 = biases0_[(s0_ + ((unit0_ * 32u) / 64u)) >> 1u];
                n_bw0_0_ = _e1684;
                metal::uint4 _e1690 = w0_[(w1_1 / 4u) + unit0_];
                n_u1_0_0_ = _e1690;
                uint _e1700 = scales0_[(s1_ + ((unit0_ * 32u) / 64u)) >> 1u];
                n_sw1_0_ = _e1700;
                uint _e1710 = biases0_[(s1_ + ((unit0_ * 32u) / 64u)) >> 1u];
                n_bw1_0_ = _e1710;
                metal::uint4 _e1716 = w1_[(w2_ / 4u) + unit0_];
                n_u2_0_0_ = _e1716;
                uint _e1726 = scales1_[(s2_ + ((unit0_ * 32u) / 64u)) >> 1u];
                n_sw2_0_ = _e1726;
                uint _e1736 = biases1_[(s2_ + ((unit0_ * 32u) / 64u)) >> 1u];
                n_bw2_0_ = _e1736;
                metal::uint4 _e1742 = w1_[(w3_ / 4u) + unit0_];
                n_u3_0_0_ = _e1742;
                uint _e1752 = scales1_[(s3_ + ((unit0_ * 32u) / 64u)) >> 1u];
                n_sw3_0_ = _e1752;
                uint _e1762 = biases1_[(s3_ + ((unit0_ * 32u) / 64u)) >> 1u];
                n_bw3_0_ = _e1762;
                metal::uint4 _e1768 = w0_[(w0_1 / 4u) + unit1_];
                n_u0_0_1_ = _e1768;
                uint _e1778 = scales0_[(s0_ + ((unit1_ * 32u) / 64u)) >> 1u];
                n_sw0_1_ = _e1778;
                uint _e1788 = biases0_[(s0_ + ((unit1_ * 32u) / 64u)) >> 1u];
                n_bw0_1_ = _e1788;
                metal::uint4 _e1794 = w0_[(w1_1 / 4u) + unit1_];
                n_u1_0_1_ = _e1794;
                uint _e1804 = scales0_[(s1_ + ((unit1_ * 32u) / 64u)) >> 1u];
                n_sw1_1_ = _e1804;
                uint _e1814 = biases0_[(s1_ + ((unit1_ * 32u) / 64u)) >> 1u];
                n_bw1_1_ = _e1814;
                metal::uint4 _e1820 = w1_[(w2_ / 4u) + unit1_];
                n_u2_0_1_ = _e1820;
                uint _e1830 = scales1_[(s2_ + ((unit1_ * 32u) / 64u)) >> 1u];
                n_sw2_1_ = _e1830;
                uint _e1840 = biases1_[(s2_ + ((unit1_ * 32u) / 64u)) >> 1u];
                n_bw2_1_ = _e1840;
                metal::uint4 _e1846 = w1_[(w3_ / 4u) + unit1_];
                n_u3_0_1_ = _e1846;
                uint _e1856 = scales1_[(s3_ + ((unit1_ * 32u) / 64u)) >> 1u];
                n_sw3_1_ = _e1856;
                uint _e1866 = biases1_[(s3_ + ((unit1_ * 32u) / 64u)) >> 1u];
                n_bw3_1_ = _e1866;
                break;
            }
            default: {
                break;
            }
        }
    }
    bool loop_init_11 = true;
    while(true) {
        if (!loop_init_11) {
            uint _e6258 = begin;
            begin = _e6258 + 64u;
        }
        loop_init_11 = false;
        uint _e1869 = begin;
        if (_e1869 < units) {
        } else {
            break;
        }
        {
            uint _e1871 = begin;
            if (_e1871 > 0u) {
                uint next = begin;
                uint unit0_1 = metal::min((next + 0u) + lane, units - 1u);
                uint unit1_1 = metal::min((next + 32u) + lane, units - 1u);
                switch(unnamed_1 >> 24u) {
                    case 0u: {
                        metal::uint4 _e1897 = slab0_[((m0_ / 4u) + (w0_1 / 4u)) + unit0_1];
                        n_u0_0_0_ = _e1897;
                        uint _e1921 = slab0_[(scales0_1 + ((s0_ + ((unit0_1 * 32u) / 64u)) >> 1u)) / 4u][(scales0_1 + ((s0_ + ((unit0_1 * 32u) / 64u)) >> 1u)) % 4u];
                        n_sw0_0_ = _e1921;
                        uint _e1945 = slab0_[(biases0_1 + ((s0_ + ((unit0_1 * 32u) / 64u)) >> 1u)) / 4u][(biases0_1 + ((s0_ + ((unit0_1 * 32u) / 64u)) >> 1u)) % 4u];
                        n_bw0_0_ = _e1945;
                        metal::uint4 _e1954 = slab0_[((m1_ / 4u) + (w1_1 / 4u)) + unit0_1];
                        n_u1_0_0_ = _e1954;
                        uint _e1978 = slab0_[(scales1_1 + ((s1_ + ((unit0_1 * 32u) / 64u)) >> 1u)) / 4u][(scales1_1 + ((s1_ + ((unit0_1 * 32u) / 64u)) >> 1u)) % 4u];
                        n_sw1_0_ = _e1978;
                        uint _e2002 = slab0_[(biases1_1 + ((s1_ + ((unit0_1 * 32u) / 64u)) >> 1u)) / 4u][(biases1_1 + ((s1_ + ((unit0_1 * 32u) / 64u)) >> 1u)) % 4u];
                        n_bw1_0_ = _e2002;
                        metal::uint4 _e2011 = slab0_[((m2_ / 4u) + (w2_ / 4u)) + unit0_1];
                        n_u2_0_0_ = _e2011;
                        uint _e2035 = slab0_[(scales2_ + ((s2_ + ((unit0_1 * 32u) / 64u)) >> 1u)) / 4u][(scales2_ + ((s2_ + ((unit0_1 * 32u) / 64u)) >> 1u)) % 4u];
                        n_sw2_0_ = _e2035;
                        uint _e2059 = slab0_[(biases2_ + ((s2_ + ((unit0_1 * 32u) / 64u)) >> 1u)) / 4u][(biases2_ + ((s2_ + ((unit0_1 * 32u) / 64u)) >> 1u)) % 4u];
                        n_bw2_0_ = _e2059;
                        metal::uint4 _e2068 = slab0_[((m3_ / 4u) + (w3_ / 4u)) + unit0_1];
                        n_u3_0_0_ = _e2068;
                        uint _e2092 = slab0_[(scales3_ + ((s3_ + ((unit0_1 * 32u) / 64u)) >> 1u)) / 4u][(scales3_ + ((s3_ + ((unit0_1 * 32u) / 64u)) >> 1u)) % 4u];
                        n_sw3_0_ = _e2092;
                        uint _e2116 = slab0_[(biases3_ + ((s3_ + ((unit0_1 * 32u) / 64u)) >> 1u)) / 4u][(biases3_ + ((s3_ + ((unit0_1 * 32u) / 64u)) >> 1u)) % 4u];
                        n_bw3_0_ = _e2116;
                        metal::uint4 _e2125 = slab0_[((m0_ / 4u) + (w0_1 / 4u)) + unit1_1];
                        n_u0_0_1_ = _e2125;
                        uint _e2149 = slab0_[(scales0_1 + ((s0_ + ((unit1_1 * 32u) / 64u)) >> 1u)) / 4u][(scales0_1 + ((s0_ + ((unit1_1 * 32u) / 64u)) >> 1u)) % 4u];
                        n_sw0_1_ = _e2149;
                        uint _e2173 = slab0_[(biases0_1 + ((s0_ + ((unit1_1 * 32u) / 64u)) >> 1u)) / 4u][(biases0_1 + ((s0_ + ((unit1_1 * 32u) / 64u)) >> 1u)) % 4u];
                        n_bw0_1_ = _e2173;
                        metal::uint4 _e2182 = slab0_[((m1_ / 4u) + (w1_1 / 4u)) + unit1_1];
                        n_u1_0_1_ = _e2182;
                        uint _e2206 = slab0_[(scales1_1 + ((s1_ + ((unit1_1 * 32u) / 64u)) >> 1u)) / 4u][(scales1_1 + ((s1_ + ((unit1_1 * 32u) / 64u)) >> 1u)) % 4u];
                        n_sw1_1_ = _e2206;
                        uint _e2230 = slab0_[(biases1_1 + ((s1_ + ((unit1_1 * 32u) / 64u)) >> 1u)) / 4u][(biases1_1 + ((s1_ + ((unit1_1 * 32u) / 64u)) >> 1u)) % 4u];
                        n_bw1_1_ = _e2230;
                        metal::uint4 _e2239 = slab0_[((m2_ / 4u) + (w2_ / 4u)) + unit1_1];
                        n_u2_0_1_ = _e2239;
                        uint _e2263 = slab0_[(scales2_ + ((s2_ + ((unit1_1 * 32u) / 64u)) >> 1u)) / 4u][(scales2_ + ((s2_ + ((unit1_1 * 32u) / 64u)) >> 1u)) % 4u];
                        n_sw2_1_ = _e2263;
                        uint _e2287 = slab0_[(biases2_ + ((s2_ + ((unit1_1 * 32u) / 64u)) >> 1u)) / 4u][(biases2_ + ((s2_ + ((unit1_1 * 32u) / 64u)) >> 1u)) % 4u];
                        n_bw2_1_ = _e2287;
                        metal::uint4 _e2296 = slab0_[((m3_ / 4u) + (w3_ / 4u)) + unit1_1];
                        n_u3_0_1_ = _e2296;
                        uint _e2320 = slab0_[(scales3_ + ((s3_ + ((unit1_1 * 32u) / 64u)) >> 1u)) / 4u][(scales3_ + ((s3_ + ((unit1_1 * 32u) / 64u)) >> 1u)) % 4u];
                        n_sw3_1_ = _e2320;
                        uint _e2344 = slab0_[(biases3_ + ((s3_ + ((unit1_1 * 32u) / 64u)) >> 1u)) / 4u][(biases3_ + ((s3_ + ((unit1_1 * 32u) / 64u)) >> 1u)) % 4u];
                        n_bw3_1_ = _e2344;
                        break;
                    }
                    case 1u: {
                        metal::uint4 _e2353 = slab1_[((m0_ / 4u) + (w0_1 / 4u)) + unit0_1];
                        n_u0_0_0_ = _e2353;
                        uint _e2377 = slab1_[(scales0_1 + ((s0_ + ((unit0_1 * 32u) / 64u)) >> 1u)) / 4u][(scales0_1 + ((s0_ + ((unit0_1 * 32u) / 64u)) >> 1u)) % 4u];
                        n_sw0_0_ = _e2377;
                        uint _e2401 = slab1_[(biases0_1 + ((s0_ + ((unit0_1 * 32u) / 64u)) >> 1u)) / 4u][(biases0_1 + ((s0_ + ((unit0_1 * 32u) / 64u)) >> 1u)) % 4u];
                        n_bw0_0_ = _e2401;
                        metal::uint4 _e2410 = slab1_[((m1_ / 4u) + (w1_1 / 4u)) + unit0_1];
                        n_u1_0_0_ = _e2410;
                        uint _e2434 = slab1_[(scales1_1 + ((s1_ + ((unit0_1 * 32u) / 64u)) >> 1u)) / 4u][(scales1_1 + ((s1_ + ((unit0_1 * 32u) / 64u)) >> 1u)) % 4u];
                        n_sw1_0_ = _e2434;
                        uint _e2458 = slab1_[(biases1_1 + ((s1_ + ((unit0_1 * 32u) / 64u)) >> 1u)) / 4u][(biases1_1 + ((s1_ + ((unit0_1 * 32u) / 64u)) >> 1u)) % 4u];
                        n_bw1_0_ = _e2458;
                        metal::uint4 _e2467 = slab1_[((m2_ / 4u) + (w2_ / 4u)) + unit0_1];
                        n_u2_0_0_ = _e2467;
                        uint _e2491 = slab1_[(scales2_ + ((s2_ + ((unit0_1 * 32u) / 64u)) >> 1u)) / 4u][(scales2_ + ((s2_ + ((unit0_1 * 32u) / 64u)) >> 1u)) % 4u];
                        n_sw2_0_ = _e2491;
                        uint _e2515 = slab1_[(biases2_ + ((s2_ + ((unit0_1 * 32u) / 64u)) >> 1u)) / 4u][(biases2_ + ((s2_ + ((unit0_1 * 32u) / 64u)) >> 1u)) % 4u];
                        n_bw2_0_ = _e2515;
                        metal::uint4 _e2524 = slab1_[((m3_ / 4u) + (w3_ / 4u)) + unit0_1];
                        n_u3_0_0_ = _e2524;
                        uint _e2548 = slab1_[(scales3_ + ((s3_ + ((unit0_1 * 32u) / 64u)) >> 1u)) / 4u][(scales3_ + ((s3_ + ((unit0_1 * 32u) / 64u)) >> 1u)) % 4u];
                        n_sw3_0_ = _e2548;
                        uint _e2572 = slab1_[(biases3_ + ((s3_ + ((unit0_1 * 32u) / 64u)) >> 1u)) / 4u][(biases3_ + ((s3_ + ((unit0_1 * 32u) / 64u)) >> 1u)) % 4u];
                        n_bw3_0_ = _e2572;
                        metal::uint4 _e2581 = slab1_[((m0_ / 4u) + (w0_1 / 4u)) + unit1_1];
                        n_u0_0_1_ = _e2581;
                        uint _e2605 = slab1_[(scales0_1 + ((s0_ + ((unit1_1 * 32u) / 64u)) >> 1u)) / 4u][(scales0_1 + ((s0_ + ((unit1_1 * 32u) / 64u)) >> 1u)) % 4u];
                        n_sw0_1_ = _e2605;
                        uint _e2629 = slab1_[(biases0_1 + ((s0_ + ((unit1_1 * 32u) / 64u)) >> 1u)) / 4u][(biases0_1 + ((s0_ + ((unit1_1 * 32u) / 64u)) >> 1u)) % 4u];
                        n_bw0_1_ = _e2629;
                        metal::uint4 _e2638 = slab1_[((m1_ / 4u) + (w1_1 / 4u)) + unit1_1];
                        n_u1_0_1_ = _e2638;
                        uint _e2662 = slab1_[(scales1_1 + ((s1_ + ((unit1_1 * 32u) / 64u)) >> 1u)) / 4u][(scales1_1 + ((s1_ + ((unit1_1 * 32u) / 64u)) >> 1u)) % 4u];
                        n_sw1_1_ = _e2662;
                        uint _e2686 = slab1_[(biases1_1 + ((s1_ + ((unit1_1 * 32u) / 64u)) >> 1u)) / 4u][(biases1_1 + ((s1_ + ((unit1_1 * 32u) / 64u)) >> 1u)) % 4u];
                        n_bw1_1_ = _e2686;
                        metal::uint4 _e2695 = slab1_[((m2_ / 4u) + (w2_ / 4u)) + unit1_1];
                        n_u2_0_1_ = _e2695;
                        uint _e2719 = slab1_[(scales2_ + ((s2_ + ((unit1_1 * 32u) / 64u)) >> 1u)) / 4u][(scales2_ + ((s2_ + ((unit1_1 * 32u) / 64u)) >> 1u)) % 4u];
                        n_sw2_1_ = _e2719;
                        uint _e2743 = slab1_[(biases2_ + ((s2_ + ((unit1_1 * 32u) / 64u)) >> 1u)) / 4u][(biases2_ + ((s2_ + ((unit1_1 * 32u) / 64u)) >> 1u)) % 4u];
                        n_bw2_1_ = _e2743;
                        metal::uint4 _e2752 = slab1_[((m3_ / 4u) + (w3_ / 4u)) + unit1_1];
                        n_u3_0_1_ = _e2752;
                        uint _e2776 = slab1_[(scales3_ + ((s3_ + ((unit1_1 * 32u) / 64u)) >> 1u)) / 4u][(scales3_ + ((s3_ + ((unit1_1 * 32u) / 64u)) >> 1u)) % 4u];
                        n_sw3_1_ = _e2776;
                        uint _e2800 = slab1_[(biases3_ + ((s3_ + ((unit1_1 * 32u) / 64u)) >> 1u)) / 4u][(biases3_ + ((s3_ + ((unit1_1 * 32u) / 64u)) >> 1u)) % 4u];
                        n_bw3_1_ = _e2800;
                        break;
                    }
                    case 2u: {
                        metal::uint4 _e2806 = w0_[(w0_1 / 4u) + unit0_1];
                        n_u0_0_0_ = _e2806;
                        uint _e2816 = scales0_[(s0_ + ((unit0_1 * 32u) / 64u)) >> 1u];
                        n_sw0_0_ = _e2816;
                        uint _e2826 = biases0_[(s0_ + ((unit0_1 * 32u) / 64u)) >> 1u];
                        n_bw0_0_ = _e2826;
                        metal::uint4 _e2832 = w0_[(w1_1 / 4u) + unit0_1];
                        n_u1_0_0_ = _e2832;
                        uint _e2842 = scales0_[(s1_ + ((unit0_1 * 32u) / 64u)) >> 1u];
                        n_sw1_0_ = _e2842;
                        uint _e2852 = biases0_[(s1_ + ((unit0_1 * 32u) / 64u)) >> 1u];
                        n_bw1_0_ = _e2852;
                        metal::uint4 _e2858 = w1_[(w2_ / 4u) + unit0_1];
                        n_u2_0_0_ = _e2858;
                        uint _e2868 = scales1_[(s2_ + ((unit0_1 * 32u) / 64u)) >> 1u];
                        n_sw2_0_ = _e2868;
                        uint _e2878 = biases1_[(s2_ + ((unit0_1 * 32u) / 64u)) >> 1u];
                        n_bw2_0_ = _e2878;
                        metal::uint4 _e2884 = w1_[(w3_ / 4u) + unit0_1];
                        n_u3_0_0_ = _e2884;
                        uint _e2894 = scales1_[(s3_ + ((unit0_1 * 32u) / 64u)) >> 1u];
                        n_sw3_0_ = _e2894;
                        uint _e2904 = biases1_[(s3_ + ((unit0_1 * 32u) / 64u)) >> 1u];
                        n_bw3_0_ = _e2904;
                        metal::uint4 _e2910 = w0_[(w0_1 / 4u) + unit1_1];
                        n_u0_0_1_ = _e2910;
                        uint _e2920 = scales0_[(s0_ + ((unit1_1 * 32u) / 64u)) >> 1u];
                        n_sw0_1_ = _e2920;
                        uint _e2930 = biases0_[(s0_ + ((unit1_1 * 32u) / 64u)) >> 1u];
                        n_bw0_1_ = _e2930;
                        metal::uint4 _e2936 = w0_[(w1_1 / 4u) + unit1_1];
                        n_u1_0_1_ = _e2936;
                        uint _e2946 = scales0_[(s1_ + ((unit1_1 * 32u) / 64u)) >> 1u];
                        n_sw1_1_ = _e2946;
                        uint _e2956 = biases0_[(s1_ + ((unit1_1 * 32u) / 64u)) >> 1u];
                        n_bw1_1_ = _e2956;
                        metal::uint4 _e2962 = w1_[(w2_ / 4u) + unit1_1];
                        n_u2_0_1_ = _e2962;
                        uint _e2972 = scales1_[(s2_ + ((unit1_1 * 32u) / 64u)) >> 1u];
                        n_sw2_1_ = _e2972;
                        uint _e2982 = biases1_[(s2_ + ((unit1_1 * 32u) / 64u)) >> 1u];
                        n_bw2_1_ = _e2982;
                        metal::uint4 _e2988 = w1_[(w3_ / 4u) + unit1_1];
                        n_u3_0_1_ = _e2988;
                        uint _e2998 = scales1_[(s3_ + ((unit1_1 * 32u) / 64u)) >> 1u];
                        n_sw3_1_ = _e2998;
                        uint _e3008 = biases1_[(s3_ + ((unit1_1 * 32u) / 64u)) >> 1u];
                        n_bw3_1_ = _e3008;
                        break;
                    }
                    default: {
                        break;
                    }
                }
            }
            metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
            uint _e3009 = begin;
            uint _e3016 = p.columns;
            uint vec_end = metal::min((_e3009 + 64u) * 8u, _e3016 >> 2u);
            uint _e3020 = begin;
            vec_at = (_e3020 * 8u) + lid;
            bool loop_init_12 = true;
            while(true) {
                if (!loop_init_12) {
                    uint _e3041 = vec_at;
                    vec_at = _e3041 + 256u;
                }
                loop_init_12 = false;
                uint _e3025 = vec_at;
                if (_e3025 < vec_end) {
                } else {
                    break;
                }
                {
                    uint _e3027 = vec_at;
                    uint _e3028 = begin;
                    uint local_3 = _e3027 - (_e3028 * 8u);
                    uint _e3038 = vec_at;
                    metal::float4 _e3040 = x[_e3038];
                    staged.inner[local_3 + (local_3 >> 3u)] = _e3040;
                }
            }
            metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
            metal::uint4 u0_0_0_ = n_u0_0_0_;
            uint sw0_0_ = n_sw0_0_;
            uint bw0_0_ = n_bw0_0_;
            metal::uint4 u1_0_0_ = n_u1_0_0_;
            uint sw1_0_ = n_sw1_0_;
            uint bw1_0_ = n_bw1_0_;
            metal::uint4 u2_0_0_ = n_u2_0_0_;
            uint sw2_0_ = n_sw2_0_;
            uint bw2_0_ = n_bw2_0_;
            metal::uint4 u3_0_0_ = n_u3_0_0_;
            uint sw3_0_ = n_sw3_0_;
            uint bw3_0_ = n_bw3_0_;
            metal::uint4 u0_0_1_ = n_u0_0_1_;
            uint sw0_1_ = n_sw0_1_;
            uint bw0_1_ = n_bw0_1_;
            metal::uint4 u1_0_1_ = n_u1_0_1_;
            uint sw1_1_ = n_sw1_1_;
            uint bw1_1_ = n_bw1_1_;
            metal::uint4 u2_0_1_ = n_u2_0_1_;
            uint sw2_1_ = n_sw2_1_;
            uint bw2_1_ = n_bw2_1_;
            metal::uint4 u3_0_1_ = n_u3_0_1_;
            uint sw3_1_ = n_sw3_1_;
            uint bw3_1_ = n_bw3_1_;
            uint _e3068 = begin;
            uint unit0_2 = (_e3068 + 0u) + lane;
            if (unit0_2 < units) {
                uint column = unit0_2 * 32u;
                uint q0_0_0_ = u0_0_0_.x;
                uint q0_1_0_ = u0_0_0_.y;
                uint q0_2_0_ = u0_0_0_.z;
                uint q0_3_0_ = u0_0_0_.w;
                float _e3082 = number(sw0_0_, s0_ + (column / 64u));
                float _e3086 = number(bw0_0_, s0_ + (column / 64u));
                uint q1_0_0_ = u1_0_0_.x;
                uint q1_1_0_ = u1_0_0_.y;
                uint q1_2_0_ = u1_0_0_.z;
                uint q1_3_0_ = u1_0_0_.w;
                float _e3094 = number(sw1_0_, s1_ + (column / 64u));
                float _e3098 = number(bw1_0_, s1_ + (column / 64u));
                uint q2_0_0_ = u2_0_0_.x;
                uint q2_1_0_ = u2_0_0_.y;
                uint q2_2_0_ = u2_0_0_.z;
                uint q2_3_0_ = u2_0_0_.w;
                float _e3106 = number(sw2_0_, s2_ + (column / 64u));
                float _e3110 = number(bw2_0_, s2_ + (column / 64u));
                uint q3_0_0_ = u3_0_0_.x;
                uint q3_1_0_ = u3_0_0_.y;
                uint q3_2_0_ = u3_0_0_.z;
                uint q3_3_0_ = u3_0_0_.w;
                float _e3118 = number(sw3_0_, s3_ + (column / 64u));
                float _e3122 = number(bw3_0_, s3_ + (column / 64u));
                uint _e3125 = begin;
                uint local_4 = (column >> 2u) - (_e3125 * 8u);
                uint place_5 = local_4 + (local_4 >> 3u);
                float v0_0_0_ = as_type<float>((q0_0_0_ & 15u) | 1258291200u) - 8388608.0;
                float v0_0_1_ = as_type<float>((q0_0_0_ & 240u) | 1224736768u) - 524288.0;
                float v0_0_2_ = as_type<float>((q0_0_0_ & 3840u) | 1191182336u) - 32768.0;
                float v0_0_3_ = as_type<float>((q0_0_0_ & 61440u) | 1157627904u) - 2048.0;
                float v0_0_4_ = as_type<float>((q0_0_0_ & 983040u) | 1124073472u) - 128.0;
                float v0_0_5_ = as_type<float>(((q0_0_0_ >> 16u) & 240u) | 1224736768u) - 524288.0;
                float v0_0_6_ = as_type<float>(((q0_0_0_ >> 16u) & 3840u) | 1191182336u) - 32768.0;
                float v0_0_7_ = as_type<float>(((q0_0_0_ >> 16u) & 61440u) | 1157627904u) - 2048.0;
                float v0_0_8_ = as_type<float>((q0_1_0_ & 15u) | 1258291200u) - 8388608.0;
                float v0_0_9_ = as_type<float>((q0_1_0_ & 240u) | 1224736768u) - 524288.0;
                float v0_0_10_ = as_type<float>((q0_1_0_ & 3840u) | 1191182336u) - 32768.0;
                float v0_0_11_ = as_type<float>((q0_1_0_ & 61440u) | 1157627904u) - 2048.0;
                float v0_0_12_ = as_type<float>((q0_1_0_ & 983040u) | 1124073472u) - 128.0;
                float v0_0_13_ = as_type<float>(((q0_1_0_ >> 16u) & 240u) | 1224736768u) - 524288.0;
                float v0_0_14_ = as_type<float>(((q0_1_0_ >> 16u) & 3840u) | 1191182336u) - 32768.0;
                float v0_0_15_ = as_type<float>(((q0_1_0_ >> 16u) & 61440u) | 1157627904u) - 2048.0;
                float v0_0_16_ = as_type<float>((q0_2_0_ & 15u) | 1258291200u) - 8388608.0;
                float v0_0_17_ = as_type<float>((q0_2_0_ & 240u) | 1224736768u) - 524288.0;
                float v0_0_18_ = as_type<float>((q0_2_0_ & 3840u) | 1191182336u) - 32768.0;
                float v0_0_19_ = as_type<float>((q0_2_0_ & 61440u) | 1157627904u) - 2048.0;
                float v0_0_20_ = as_type<float>((q0_2_0_ & 983040u) | 1124073472u) - 128.0;
                float v0_0_21_ = as_type<float>(((q0_2_0_ >> 16u) & 240u) | 1224736768u) - 524288.0;
                float v0_0_22_ = as_type<float>(((q0_2_0_ >> 16u) & 3840u) | 1191182336u) - 32768.0;
                float v0_0_23_ = as_type<float>(((q0_2_0_ >> 16u) & 61440u) | 1157627904u) - 2048.0;
                float v0_0_24_ = as_type<float>((q0_3_0_ & 15u) | 1258291200u) - 8388608.0;
                float v0_0_25_ = as_type<float>((q0_3_0_ & 240u) | 1224736768u) - 524288.0;
                float v0_0_26_ = as_type<float>((q0_3_0_ & 3840u) | 1191182336u) - 32768.0;
                float v0_0_27_ = as_type<float>((q0_3_0_ & 61440u) | 1157627904u) - 2048.0;
                float v0_0_28_ = as_type<float>((q0_3_0_ & 983040u) | 1124073472u) - 128.0;
                float v0_0_29_ = as_type<float>(((q0_3_0_ >> 16u) & 240u) | 1224736768u) - 524288.0;
                float v0_0_30_ = as_type<float>(((q0_3_0_ >> 16u) & 3840u) | 1191182336u) - 32768.0;
                float v0_0_31_ = as_type<float>(((q0_3_0_ >> 16u) & 61440u) | 1157627904u) - 2048.0;
                float v0_1_0_ = as_type<float>((q1_0_0_ & 15u) | 1258291200u) - 8388608.0;
                float v0_1_1_ = as_type<float>((q1_0_0_ & 240u) | 1224736768u) - 524288.0;
                float v0_1_2_ = as_type<float>((q1_0_0_ & 3840u) | 1191182336u) - 32768.0;
                float v0_1_3_ = as_type<float>((q1_0_0_ & 61440u) | 1157627904u) - 2048.0;
                float v0_1_4_ = as_type<float>((q1_0_0_ & 983040u) | 1124073472u) - 128.0;
                float v0_1_5_ = as_type<float>(((q1_0_0_ >> 16u) & 240u) | 1224736768u) - 524288.0;
                float v0_1_6_ = as_type<float>(((q1_0_0_ >> 16u) & 3840u) | 1191182336u) - 32768.0;
                float v0_1_7_ = as_type<float>(((q1_0_0_ >> 16u) & 61440u) | 1157627904u) - 2048.0;
                float v0_1_8_ = as_type<float>((q1_1_0_ & 15u) | 1258291200u) - 8388608.0;
                float v0_1_9_ = as_type<float>((q1_1_0_ & 240u) | 1224736768u) - 524288.0;
                float v0_1_10_ = as_type<float>((q1_1_0_ & 3840u) | 1191182336u) - 32768.0;
                float v0_1_11_ = as_type<float>((q1_1_0_ & 61440u) | 1157627904u) - 2048.0;
                float v0_1_12_ = as_type<float>((q1_1_0_ & 983040u) | 1124073472u) - 128.0;
                float v0_1_13_ = as_type<float>(((q1_1_0_ >> 16u) & 240u) | 1224736768u) - 524288.0;
                float v0_1_14_ = as_type<float>(((q1_1_0_ >> 16u) & 3840u) | 1191182336u) - 32768.0;
                float v0_1_15_ = as_type<float>(((q1_1_0_ >> 16u) & 61440u) | 1157627904u) - 2048.0;
                float v0_1_16_ = as_type<float>((q1_2_0_ & 15u) | 1258291200u) - 8388608.0;
                float v0_1_17_ = as_type<float>((q1_2_0_ & 240u) | 1224736768u) - 524288.0;
                float v0_1_18_ = as_type<float>((q1_2_0_ & 3840u) | 1191182336u) - 32768.0;
                float v0_1_19_ = as_type<float>((q1_2_0_ & 61440u) | 1157627904u) - 2048.0;
                float v0_1_20_ = as_type<float>((q1_2_0_ & 983040u) | 1124073472u) - 128.0;
                float v0_1_21_ = as_type<float>(((q1_2_0_ >> 16u) & 240u) | 1224736768u) - 524288.0;
                float v0_1_22_ = as_type<float>(((q1_2_0_ >> 16u) & 3840u) | 1191182336u) - 32768.0;
                float v0_1_23_ = as_type<float>(((q1_2_0_ >> 16u) & 61440u) | 1157627904u) - 2048.0;
                float v0_1_24_ = as_type<float>((q1_3_0_ & 15u) | 1258291200u) - 8388608.0;
                float v0_1_25_ = as_type<float>((q1_3_0_ & 240u) | 1224736768u) - 524288.0;
                float v0_1_26_ = as_type<float>((q1_3_0_ & 3840u) | 1191182336u) - 32768.0;
                float v0_1_27_ = as_type<float>((q1_3_0_ & 61440u) | 1157627904u) - 2048.0;
                float v0_1_28_ = as_type<float>((q1_3_0_ & 983040u) | 1124073472u) - 128.0;
                float v0_1_29_ = as_type<float>(((q1_3_0_ >> 16u) & 240u) | 1224736768u) - 524288.0;
                float v0_1_30_ = as_type<float>(((q1_3_0_ >> 16u) & 3840u) | 1191182336u) - 32768.0;
                float v0_1_31_ = as_type<float>(((q1_3_0_ >> 16u) & 61440u) | 1157627904u) - 2048.0;
                float v0_2_0_ = as_type<float>((q2_0_0_ & 15u) | 1258291200u) - 8388608.0;
                float v0_2_1_ = as_type<float>((q2_0_0_ & 240u) | 1224736768u) - 524288.0;
                float v0_2_2_ = as_type<float>((q2_0_0_ & 3840u) | 1191182336u) - 32768.0;
                float v0_2_3_ = as_type<float>((q2_0_0_ & 61440u) | 1157627904u) - 2048.0;
                float v0_2_4_ = as_type<float>((q2_0_0_ & 983040u) | 1124073472u) - 128.0;
                float v0_2_5_ = as_type<float>(((q2_0_0_ >> 16u) & 240u) | 1224736768u) - 524288.0;
                float v0_2_6_ = as_type<float>(((q2_0_0_ >> 16u) & 3840u) | 1191182336u) - 32768.0;
                float v0_2_7_ = as_type<float>(((q2_0_0_ >> 16u) & 61440u) | 1157627904u) - 2048.0;
                float v0_2_8_ = as_type<float>((q2_1_0_ & 15u) | 1258291200u) - 8388608.0;
                float v0_2_9_ = as_type<float>((q2_1_0_ & 240u) | 1224736768u) - 524288.0;
                float v0_2_10_ = as_type<float>((q2_1_0_ & 3840u) | 1191182336u) - 32768.0;
                float v0_2_11_ = as_type<float>((q2_1_0_ & 61440u) | 1157627904u) - 2048.0;
                float v0_2_12_ = as_type<float>((q2_1_0_ & 983040u) | 1124073472u) - 128.0;
                float v0_2_13_ = as_type<float>(((q2_1_0_ >> 16u) & 240u) | 1224736768u) - 524288.0;
                float v0_2_14_ = as_type<float>(((q2_1_0_ >> 16u) & 3840u) | 1191182336u) - 32768.0;
                float v0_2_15_ = as_type<float>(((q2_1_0_ >> 16u) & 61440u) | 1157627904u) - 2048.0;
                float v0_2_16_ = as_type<float>((q2_2_0_ & 15u) | 1258291200u) - 8388608.0;
                float v0_2_17_ = as_type<float>((q2_2_0_ & 240u) | 1224736768u) - 524288.0;
                float v0_2_18_ = as_type<float>((q2_2_0_ & 3840u) | 1191182336u) - 32768.0;
                float v0_2_19_ = as_type<float>((q2_2_0_ & 61440u) | 1157627904u) - 2048.0;
                float v0_2_20_ = as_type<float>((q2_2_0_ & 983040u) | 1124073472u) - 128.0;
                float v0_2_21_ = as_type<float>(((q2_2_0_ >> 16u) & 240u) | 1224736768u) - 524288.0;
                float v0_2_22_ = as_type<float>(((q2_2_0_ >> 16u) & 3840u) | 1191182336u) - 32768.0;
                float v0_2_23_ = as_type<float>(((q2_2_0_ >> 16u) & 61440u) | 1157627904u) - 2048.0;
                float v0_2_24_ = as_type<float>((q2_3_0_ & 15u) | 1258291200u) - 8388608.0;
                float v0_2_25_ = as_type<float>((q2_3_0_ & 240u) | 1224736768u) - 524288.0;
                float v0_2_26_ = as_type<float>((q2_3_0_ & 3840u) | 1191182336u) - 32768.0;
                float v0_2_27_ = as_type<float>((q2_3_0_ & 61440u) | 1157627904u) - 2048.0;
                float v0_2_28_ = as_type<float>((q2_3_0_ & 983040u) | 1124073472u) - 128.0;
                float v0_2_29_ = as_type<float>(((q2_3_0_ >> 16u) & 240u) | 1224736768u) - 524288.0;
                float v0_2_30_ = as_type<float>(((q2_3_0_ >> 16u) & 3840u) | 1191182336u) - 32768.0;
                float v0_2_31_ = as_type<float>(((q2_3_0_ >> 16u) & 61440u) | 1157627904u) - 2048.0;
                float v0_3_0_ = as_type<float>((q3_0_0_ & 15u) | 1258291200u) - 8388608.0;
                float v0_3_1_ = as_type<float>((q3_0_0_ & 240u) | 1224736768u) - 524288.0;
                float v0_3_2_ = as_type<float>((q3_0_0_ & 3840u) | 1191182336u) - 32768.0;
                float v0_3_3_ = as_type<float>((q3_0_0_ & 61440u) | 1157627904u) - 2048.0;
                float v0_3_4_ = as_type<float>((q3_0_0_ & 983040u) | 1124073472u) - 128.0;
                float v0_3_5_ = as_type<float>(((q3_0_0_ >> 16u) & 240u) | 1224736768u) - 524288.0;
                float v0_3_6_ = as_type<float>(((q3_0_0_ >> 16u) & 3840u) | 1191182336u) - 32768.0;
                float v0_3_7_ = as_type<float>(((q3_0_0_ >> 16u) & 61440u) | 1157627904u) - 2048.0;
                float v0_3_8_ = as_type<float>((q3_1_0_ & 15u) | 1258291200u) - 8388608.0;
                float v0_3_9_ = as_type<float>((q3_1_0_ & 240u) | 1224736768u) - 524288.0;
                float v0_3_10_ = as_type<float>((q3_1_0_ & 3840u) | 1191182336u) - 32768.0;
                float v0_3_11_ = as_type<float>((q3_1_0_ & 61440u) | 1157627904u) - 2048.0;
                float v0_3_12_ = as_type<float>((q3_1_0_ & 983040u) | 1124073472u) - 128.0;
                float v0_3_13_ = as_type<float>(((q3_1_0_ >> 16u) & 240u) | 1224736768u) - 524288.0;
                float v0_3_14_ = as_type<float>(((q3_1_0_ >> 16u) & 3840u) | 1191182336u) - 32768.0;
                float v0_3_15_ = as_type<float>(((q3_1_0_ >> 16u) & 61440u) | 1157627904u) - 2048.0;
                float v0_3_16_ = as_type<float>((q3_2_0_ & 15u) | 1258291200u) - 8388608.0;
                float v0_3_17_ = as_type<float>((q3_2_0_ & 240u) | 1224736768u) - 524288.0;
                float v0_3_18_ = as_type<float>((q3_2_0_ & 3840u) | 1191182336u) - 32768.0;
                float v0_3_19_ = as_type<float>((q3_2_0_ & 61440u) | 1157627904u) - 2048.0;
                float v0_3_20_ = as_type<float>((q3_2_0_ & 983040u) | 1124073472u) - 128.0;
                float v0_3_21_ = as_type<float>(((q3_2_0_ >> 16u) & 240u) | 1224736768u) - 524288.0;
                float v0_3_22_ = as_type<float>(((q3_2_0_ >> 16u) & 3840u) | 1191182336u) - 32768.0;
                float v0_3_23_ = as_type<float>(((q3_2_0_ >> 16u) & 61440u) | 1157627904u) - 2048.0;
                float v0_3_24_ = as_type<float>((q3_3_0_ & 15u) | 1258291200u) - 8388608.0;
                float v0_3_25_ = as_type<float>((q3_3_0_ & 240u) | 1224736768u) - 524288.0;
                float v0_3_26_ = as_type<float>((q3_3_0_ & 3840u) | 1191182336u) - 32768.0;
                float v0_3_27_ = as_type<float>((q3_3_0_ & 61440u) | 1157627904u) - 2048.0;
                float v0_3_28_ = as_type<float>((q3_3_0_ & 983040u) | 1124073472u) - 128.0;
                float v0_3_29_ = as_type<float>(((q3_3_0_ >> 16u) & 240u) | 1224736768u) - 524288.0;
                float v0_3_30_ = as_type<float>(((q3_3_0_ >> 16u) & 3840u) | 1191182336u) - 32768.0;
                float v0_3_31_ = as_type<float>(((q3_3_0_ >> 16u) & 61440u) | 1157627904u) - 2048.0;
                metal::float4 i0_0_0_ = staged.inner[place_5 + 0u];
                metal::float4 i0_0_1_ = staged.inner[place_5 + 1u];
                metal::float4 i0_0_2_ = staged.inner[place_5 + 2u];
                metal::float4 i0_0_3_ = staged.inner[place_5 + 3u];
                metal::float4 i0_0_4_ = staged.inner[place_5 + 4u];
                metal::float4 i0_0_5_ = staged.inner[place_5 + 5u];
                metal::float4 i0_0_6_ = staged.inner[place_5 + 6u];
                metal::float4 i0_0_7_ = staged.inner[place_5 + 7u];
                all0_0_ = i0_0_0_.x;
                float _e4166 = all0_0_;
                all0_0_ = _e4166 + i0_0_0_.y;
                float _e4169 = all0_0_;
                all0_0_ = _e4169 + i0_0_0_.z;
                float _e4172 = all0_0_;
                all0_0_ = _e4172 + i0_0_0_.w;
                float _e4175 = all0_0_;
                all0_0_ = _e4175 + i0_0_1_.x;
                float _e4178 = all0_0_;
                all0_0_ = _e4178 + i0_0_1_.y;
                float _e4181 = all0_0_;
                all0_0_ = _e4181 + i0_0_1_.z;
                float _e4184 = all0_0_;
                all0_0_ = _e4184 + i0_0_1_.w;
                float _e4187 = all0_0_;
                all0_0_ = _e4187 + i0_0_2_.x;
                float _e4190 = all0_0_;
                all0_0_ = _e4190 + i0_0_2_.y;
                float _e4193 = all0_0_;
                all0_0_ = _e4193 + i0_0_2_.z;
                float _e4196 = all0_0_;
                all0_0_ = _e4196 + i0_0_2_.w;
                float _e4199 = all0_0_;
                all0_0_ = _e4199 + i0_0_3_.x;
                float _e4202 = all0_0_;
                all0_0_ = _e4202 + i0_0_3_.y;
                float _e4205 = all0_0_;
                all0_0_ = _e4205 + i0_0_3_.z;
                float _e4208 = all0_0_;
                all0_0_ = _e4208 + i0_0_3_.w;
                float _e4211 = all0_0_;
                all0_0_ = _e4211 + i0_0_4_.x;
                float _e4214 = all0_0_;
                all0_0_ = _e4214 + i0_0_4_.y;
                float _e4217 = all0_0_;
                all0_0_ = _e4217 + i0_0_4_.z;
                float _e4220 = all0_0_;
                all0_0_ = _e4220 + i0_0_4_.w;
                float _e4223 = all0_0_;
                all0_0_ = _e4223 + i0_0_5_.x;
                float _e4226 = all0_0_;
                all0_0_ = _e4226 + i0_0_5_.y;
                float _e4229 = all0_0_;
                all0_0_ = _e4229 + i0_0_5_.z;
                float _e4232 = all0_0_;
                all0_0_ = _e4232 + i0_0_5_.w;
                float _e4235 = all0_0_;
                all0_0_ = _e4235 + i0_0_6_.x;
                float _e4238 = all0_0_;
                all0_0_ = _e4238 + i0_0_6_.y;
                float _e4241 = all0_0_;
                all0_0_ = _e4241 + i0_0_6_.z;
                float _e4244 = all0_0_;
                all0_0_ = _e4244 + i0_0_6_.w;
                float _e4247 = all0_0_;
                all0_0_ = _e4247 + i0_0_7_.x;
                float _e4250 = all0_0_;
                all0_0_ = _e4250 + i0_0_7_.y;
                float _e4253 = all0_0_;
                all0_0_ = _e4253 + i0_0_7_.z;
                float _e4256 = all0_0_;
                all0_0_ = _e4256 + i0_0_7_.w;
                dot0_0_ = v0_0_0_ * i0_0_0_.x;
                float _e4263 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_1_, i0_0_0_.y, _e4263);
                float _e4266 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_2_, i0_0_0_.z, _e4266);
                float _e4269 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_3_, i0_0_0_.w, _e4269);
                float _e4272 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_4_, i0_0_1_.x, _e4272);
                float _e4275 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_5_, i0_0_1_.y, _e4275);
                float _e4278 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_6_, i0_0_1_.z, _e4278);
                float _e4281 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_7_, i0_0_1_.w, _e4281);
                float _e4284 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_8_, i0_0_2_.x, _e4284);
                float _e4287 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_9_, i0_0_2_.y, _e4287);
                float _e4290 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_10_, i0_0_2_.z, _e4290);
                float _e4293 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_11_, i0_0_2_.w, _e4293);
                float _e4296 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_12_, i0_0_3_.x, _e4296);
                float _e4299 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_13_, i0_0_3_.y, _e4299);
                float _e4302 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_14_, i0_0_3_.z, _e4302);
                float _e4305 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_15_, i0_0_3_.w, _e4305);
                float _e4308 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_16_, i0_0_4_.x, _e4308);
                float _e4311 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_17_, i0_0_4_.y, _e4311);
                float _e4314 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_18_, i0_0_4_.z, _e4314);
                float _e4317 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_19_, i0_0_4_.w, _e4317);
                float _e4320 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_20_, i0_0_5_.x, _e4320);
                float _e4323 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_21_, i0_0_5_.y, _e4323);
                float _e4326 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_22_, i0_0_5_.z, _e4326);
                float _e4329 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_23_, i0_0_5_.w, _e4329);
                float _e4332 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_24_, i0_0_6_.x, _e4332);
                float _e4335 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_25_, i0_0_6_.y, _e4335);
                float _e4338 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_26_, i0_0_6_.z, _e4338);
                float _e4341 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_27_, i0_0_6_.w, _e4341);
                float _e4344 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_28_, i0_0_7_.x, _e4344);
                float _e4347 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_29_, i0_0_7_.y, _e4347);
                float _e4350 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_30_, i0_0_7_.z, _e4350);
                float _e4353 = dot0_0_;
                dot0_0_ = metal::fma(v0_0_31_, i0_0_7_.w, _e4353);
                float _e4355 = dot0_0_;
                float _e4356 = all0_0_;
                float _e4357 = acc0_;
                acc0_ = metal::fma(_e3082, _e4355, metal::fma(_e3086, _e4356, _e4357));
                dot1_0_ = v0_1_0_ * i0_0_0_.x;
                float _e4364 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_1_, i0_0_0_.y, _e4364);
                float _e4367 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_2_, i0_0_0_.z, _e4367);
                float _e4370 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_3_, i0_0_0_.w, _e4370);
                float _e4373 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_4_, i0_0_1_.x, _e4373);
                float _e4376 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_5_, i0_0_1_.y, _e4376);
                float _e4379 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_6_, i0_0_1_.z, _e4379);
                float _e4382 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_7_, i0_0_1_.w, _e4382);
                float _e4385 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_8_, i0_0_2_.x, _e4385);
                float _e4388 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_9_, i0_0_2_.y, _e4388);
                float _e4391 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_10_, i0_0_2_.z, _e4391);
                float _e4394 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_11_, i0_0_2_.w, _e4394);
                float _e4397 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_12_, i0_0_3_.x, _e4397);
                float _e4400 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_13_, i0_0_3_.y, _e4400);
                float _e4403 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_14_, i0_0_3_.z, _e4403);
                float _e4406 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_15_, i0_0_3_.w, _e4406);
                float _e4409 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_16_, i0_0_4_.x, _e4409);
                float _e4412 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_17_, i0_0_4_.y, _e4412);
                float _e4415 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_18_, i0_0_4_.z, _e4415);
                float _e4418 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_19_, i0_0_4_.w, _e4418);
                float _e4421 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_20_, i0_0_5_.x, _e4421);
                float _e4424 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_21_, i0_0_5_.y, _e4424);
                float _e4427 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_22_, i0_0_5_.z, _e4427);
                float _e4430 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_23_, i0_0_5_.w, _e4430);
                float _e4433 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_24_, i0_0_6_.x, _e4433);
                float _e4436 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_25_, i0_0_6_.y, _e4436);
                float _e4439 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_26_, i0_0_6_.z, _e4439);
                float _e4442 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_27_, i0_0_6_.w, _e4442);
                float _e4445 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_28_, i0_0_7_.x, _e4445);
                float _e4448 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_29_, i0_0_7_.y, _e4448);
                float _e4451 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_30_, i0_0_7_.z, _e4451);
                float _e4454 = dot1_0_;
                dot1_0_ = metal::fma(v0_1_31_, i0_0_7_.w, _e4454);
                float _e4456 = dot1_0_;
                float _e4457 = all0_0_;
                float _e4458 = acc1_;
                acc1_ = metal::fma(_e3094, _e4456, metal::fma(_e3098, _e4457, _e4458));
                dot2_0_ = v0_2_0_ * i0_0_0_.x;
                float _e4465 = dot2_0_;
                dot2_0_ = metal::fma(v0_2_1_, i0_0_0_.y, _e4465);
                float _e4468 = dot2_0_;
                dot2_0_ = metal::fma(v0_2_2_, i0_0_0_.z, _e4468);
                float _e4471 = dot2_0_;
                dot2_0_ = metal::fma(v0_2_3_, i0_0_0_.w, _e4471);
                float _e4474 = dot2_0_;
                dot2_0_ = metal::fma(v0_2_4_, i0_0_1_.x, _e4474);
                float _e4477 = dot2_0_;
                dot2_0_ = metal::fma(v0_2_5_, i0_0_1_.y, _e4477);
                float _e4480 = dot2_0_;
                dot2_0_ = metal::fma(v0_2_6_, i0_0_1_.z, _e4480);
                float _e4483 = dot2_0_;
                dot2_0_ = metal::fma(v0_2_7_, i0_0_1_.w, _e4483);
                float _e4486 = dot2_0_;
                dot2_0_ = metal::fma(v0_2_8_, i0_0_2_.x, _e4486);
                float _e4489 = dot2_0_;
                dot2_0_ = metal::fma(v0_2_9_, i0_0_2_.y, _e4489);
                float _e4492 = dot2_0_;
                dot2_0_ = metal::fma(v0_2_10_, i0_0_2_.z, _e4492);
                float _e4495 = dot2_0_;
                dot2_0_ = metal::fma(v0_2_11_, i0_0_2_.w, _e4495);
                float _e4498 = dot2_0_;
                dot2_0_ = metal::fma(v0_2_12_, i0_0_3_.x, _e4498);
                float _e4501 = dot2_0_;
                dot2_0_ = metal::fma(v0_2_13_, i0_0_3_.y, _e4501);
                float _e4504 = dot2_0_;
                dot2_0_ = metal::fma(v0_2_14_, i0_0_3_.z, _e4504);
                float _e4507 = dot2_0_;
                dot2_0_ = metal::fma(v0_2_15_, i0_0_3_.w, _e4507);
                float _e4510 = dot2_0_;
                dot2_0_ = metal::fma(v0_2_16_, i0_0_4_.x, _e4510);
                float _e4513 = dot2_0_;
                dot2_0_ = metal::fma(v0_2_17_, i0_0_4_.y, _e4513);
                float _e4516 = dot2_0_;
                dot2_0_ = metal::fma(v0_2_18_, i0_0_4_.z, _e4516);
                float _e4519 = dot2_0_;
                dot2_0_ = metal::fma(v0_2_19_, i0_0_4_.w, _e4519);
                float _e4522 = dot2_0_;
                dot2_0_ = metal::fma(v0_2_20_, i0_0_5_.x, _e4522);
                float _e4525 = dot2_0_;
                dot2_0_ = metal::fma(v0_2_21_, i0_0_5_.y, _e4525);
                float _e4528 = dot2_0_;
                dot2_0_ = metal::fma(v0_2_22_, i0_0_5_.z, _e4528);
                float _e4531 = dot2_0_;
                dot2_0_ = metal::fma(v0_2_23_, i0_0_5_.w, _e4531);
                float _e4534 = dot2_0_;
                dot2_0_ = metal::fma(v0_2_24_, i0_0_6_.x, _e4534);
                float _e4537 = dot2_0_;
                dot2_0_ = metal::fma(v0_2_25_, i0_0_6_.y, _e4537);
                float _e4540 = dot2_0_;
                dot2_0_ = metal::fma(v0_2_26_, i0_0_6_.z, _e4540);
                float _e4543 = dot2_0_;
                dot2_0_ = metal::fma(v0_2_27_, i0_0_6_.w, _e4543);
                float _e4546 = dot2_0_;
                dot2_0_ = metal::fma(v0_2_28_, i0_0_7_.x, _e4546);
                float _e4549 = dot2_0_;
                dot2_0_ = metal::fma(v0_2_29_, i0_0_7_.y, _e4549);
                float _e4552 = dot2_0_;
                dot2_0_ = metal::fma(v0_2_30_, i0_0_7_.z, _e4552);
                float _e4555 = dot2_0_;
                dot2_0_ = metal::fma(v0_2_31_, i0_0_7_.w, _e4555);
                float _e4557 = dot2_0_;
                float _e4558 = all0_0_;
                float _e4559 = acc2_;
                acc2_ = metal::fma(_e3106, _e4557, metal::fma(_e3110, _e4558, _e4559));
                dot3_0_ = v0_3_0_ * i0_0_0_.x;
                float _e4566 = dot3_0_;
                dot3_0_ = metal::fma(v0_3_1_, i0_0_0_.y, _e4566);
                float _e4569 = dot3_0_;
                dot3_0_ = metal::fma(v0_3_2_, i0_0_0_.z, _e4569);
                float _e4572 = dot3_0_;
                dot3_0_ = metal::fma(v0_3_3_, i0_0_0_.w, _e4572);
                float _e4575 = dot3_0_;
                dot3_0_ = metal::fma(v0_3_4_, i0_0_1_.x, _e4575);
                float _e4578 = dot3_0_;
                dot3_0_ = metal::fma(v0_3_5_, i0_0_1_.y, _e4578);
                float _e4581 = dot3_0_;
                dot3_0_ = metal::fma(v0_3_6_, i0_0_1_.z, _e4581);
                float _e4584 = dot3_0_;
                dot3_0_ = metal::fma(v0_3_7_, i0_0_1_.w, _e4584);
                float _e4587 = dot3_0_;
                dot3_0_ = metal::fma(v0_3_8_, i0_0_2_.x, _e4587);
                float _e4590 = dot3_0_;
                dot3_0_ = metal::fma(v0_3_9_, i0_0_2_.y, _e4590);
                float _e4593 = dot3_0_;
                dot3_0_ = metal::fma(v0_3_10_, i0_0_2_.z, _e4593);
                float _e4596 = dot3_0_;
                dot3_0_ = metal::fma(v0_3_11_, i0_0_2_.w, _e4596);
                float _e4599 = dot3_0_;
                dot3_0_ = metal::fma(v0_3_12_, i0_0_3_.x, _e4599);
                float _e4602 = dot3_0_;
                dot3_0_ = metal::fma(v0_3_13_, i0_0_3_.y, _e4602);
                float _e4605 = dot3_0_;
                dot3_0_ = metal::fma(v0_3_14_, i0_0_3_.z, _e4605);
                float _e4608 = dot3_0_;
                dot3_0_ = metal::fma(v0_3_15_, i0_0_3_.w, _e4608);
                float _e4611 = dot3_0_;
                dot3_0_ = metal::fma(v0_3_16_, i0_0_4_.x, _e4611);
                float _e4614 = dot3_0_;
                dot3_0_ = metal::fma(v0_3_17_, i0_0_4_.y, _e4614);
                float _e4617 = dot3_0_;
                dot3_0_ = metal::fma(v0_3_18_, i0_0_4_.z, _e4617);
                float _e4620 = dot3_0_;
                dot3_0_ = metal::fma(v0_3_19_, i0_0_4_.w, _e4620);
                float _e4623 = dot3_0_;
                dot3_0_ = metal::fma(v0_3_20_, i0_0_5_.x, _e4623);
                float _e4626 = dot3_0_;
                dot3_0_ = metal::fma(v0_3_21_, i0_0_5_.y, _e4626);
                float _e4629 = dot3_0_;
                dot3_0_ = metal::fma(v0_3_22_, i0_0_5_.z, _e4629);
                float _e4632 = dot3_0_;
                dot3_0_ = metal::fma(v0_3_23_, i0_0_5_.w, _e4632);
                float _e4635 = dot3_0_;
                dot3_0_ = metal::fma(v0_3_24_, i0_0_6_.x, _e4635);
                float _e4638 = dot3_0_;
                dot3_0_ = metal::fma(v0_3_25_, i0_0_6_.y, _e4638);
                float _e4641 = dot3_0_;
                dot3_0_ = metal::fma(v0_3_26_, i0_0_6_.z, _e4641);
                float _e4644 = dot3_0_;
                dot3_0_ = metal::fma(v0_3_27_, i0_0_6_.w, _e4644);
                float _e4647 = dot3_0_;
                dot3_0_ = metal::fma(v0_3_28_, i0_0_7_.x, _e4647);
                float _e4650 = dot3_0_;
                dot3_0_ = metal::fma(v0_3_29_, i0_0_7_.y, _e4650);
                float _e4653 = dot3_0_;
                dot3_0_ = metal::fma(v0_3_30_, i0_0_7_.z, _e4653);
                float _e4656 = dot3_0_;
                dot3_0_ = metal::fma(v0_3_31_, i0_0_7_.w, _e4656);
                float _e4658 = dot3_0_;
                float _e4659 = all0_0_;
                float _e4660 = acc3_;
                acc3_ = metal::fma(_e3118, _e4658, metal::fma(_e3122, _e4659, _e4660));
            }
            uint _e4663 = begin;
            uint unit1_2 = (_e4663 + 32u) + lane;
            if (unit1_2 < units) {
                uint column_1 = unit1_2 * 32u;
                uint q0_0_0_1 = u0_0_1_.x;
                uint q0_1_0_1 = u0_0_1_.y;
                uint q0_2_0_1 = u0_0_1_.z;
                uint q0_3_0_1 = u0_0_1_.w;
                float _e4677 = number(sw0_1_, s0_ + (column_1 / 64u));
                float _e4681 = number(bw0_1_, s0_ + (column_1 / 64u));
                uint q1_0_0_1 = u1_0_1_.x;
                uint q1_1_0_1 = u1_0_1_.y;
                uint q1_2_0_1 = u1_0_1_.z;
                uint q1_3_0_1 = u1_0_1_.w;
                float _e4689 = number(sw1_1_, s1_ + (column_1 / 64u));
                float _e4693 = number(bw1_1_, s1_ + (column_1 / 64u));
                uint q2_0_0_1 = u2_0_1_.x;
                uint q2_1_0_1 = u2_0_1_.y;
                uint q2_2_0_1 = u2_0_1_.z;
                uint q2_3_0_1 = u2_0_1_.w;
                float _e4701 = number(sw2_1_, s2_ + (column_1 / 64u));
                float _e4705 = number(bw2_1_, s2_ + (column_1 / 64u));
                uint q3_0_0_1 = u3_0_1_.x;
                uint q3_1_0_1 = u3_0_1_.y;
                uint q3_2_0_1 = u3_0_1_.z;
                uint q3_3_0_1 = u3_0_1_.w;
                float _e4713 = number(sw3_1_, s3_ + (column_1 / 64u));
                float _e4717 = number(bw3_1_, s3_ + (column_1 / 64u));
                uint _e4720 = begin;
                uint local_5 = (column_1 >> 2u) - (_e4720 * 8u);
                uint place_6 = local_5 + (local_5 >> 3u);
                float v0_0_0_1 = as_type<float>((q0_0_0_1 & 15u) | 1258291200u) - 8388608.0;
                float v0_0_1_1 = as_type<float>((q0_0_0_1 & 240u) | 1224736768u) - 524288.0;
                float v0_0_2_1 = as_type<float>((q0_0_0_1 & 3840u) | 1191182336u) - 32768.0;
                float v0_0_3_1 = as_type<float>((q0_0_0_1 & 61440u) | 1157627904u) - 2048.0;
                float v0_0_4_1 = as_type<float>((q0_0_0_1 & 983040u) | 1124073472u) - 128.0;
                float v0_0_5_1 = as_type<float>(((q0_0_0_1 >> 16u) & 240u) | 1224736768u) - 524288.0;
                float v0_0_6_1 = as_type<float>(((q0_0_0_1 >> 16u) & 3840u) | 1191182336u) - 32768.0;
                float v0_0_7_1 = as_type<float>(((q0_0_0_1 >> 16u) & 61440u) | 1157627904u) - 2048.0;
                float v0_0_8_1 = as_type<float>((q0_1_0_1 & 15u) | 1258291200u) - 8388608.0;
                float v0_0_9_1 = as_type<float>((q0_1_0_1 & 240u) | 1224736768u) - 524288.0;
                float v0_0_10_1 = as_type<float>((q0_1_0_1 & 3840u) | 1191182336u) - 32768.0;
                float v0_0_11_1 = as_type<float>((q0_1_0_1 & 61440u) | 1157627904u) - 2048.0;
                float v0_0_12_1 = as_type<float>((q0_1_0_1 & 983040u) | 1124073472u) - 128.0;
                float v0_0_13_1 = as_type<float>(((q0_1_0_1 >> 16u) & 240u) | 1224736768u) - 524288.0;
                float v0_0_14_1 = as_type<float>(((q0_1_0_1 >> 16u) & 3840u) | 1191182336u) - 32768.0;
                float v0_0_15_1 = as_type<float>(((q0_1_0_1 >> 16u) & 61440u) | 1157627904u) - 2048.0;
                float v0_0_16_1 = as_type<float>((q0_2_0_1 & 15u) | 1258291200u) - 8388608.0;
                float v0_0_17_1 = as_type<float>((q0_2_0_1 & 240u) | 1224736768u) - 524288.0;
                float v0_0_18_1 = as_type<float>((q0_2_0_1 & 3840u) | 1191182336u) - 32768.0;
                float v0_0_19_1 = as_type<float>((q0_2_0_1 & 61440u) | 1157627904u) - 2048.0;
                float v0_0_20_1 = as_type<float>((q0_2_0_1 & 983040u) | 1124073472u) - 128.0;
                float v0_0_21_1 = as_type<float>(((q0_2_0_1 >> 16u) & 240u) | 1224736768u) - 524288.0;
                float v0_0_22_1 = as_type<float>(((q0_2_0_1 >> 16u) & 3840u) | 1191182336u) - 32768.0;
                float v0_0_23_1 = as_type<float>(((q0_2_0_1 >> 16u) & 61440u) | 1157627904u) - 2048.0;
                float v0_0_24_1 = as_type<float>((q0_3_0_1 & 15u) | 1258291200u) - 8388608.0;
                float v0_0_25_1 = as_type<float>((q0_3_0_1 & 240u) | 1224736768u) - 524288.0;
                float v0_0_26_1 = as_type<float>((q0_3_0_1 & 3840u) | 1191182336u) - 32768.0;
                float v0_0_27_1 = as_type<float>((q0_3_0_1 & 61440u) | 1157627904u) - 2048.0;
                float v0_0_28_1 = as_type<float>((q0_3_0_1 & 983040u) | 1124073472u) - 128.0;
                float v0_0_29_1 = as_type<float>(((q0_3_0_1 >> 16u) & 240u) | 1224736768u) - 524288.0;
                float v0_0_30_1 = as_type<float>(((q0_3_0_1 >> 16u) & 3840u) | 1191182336u) - 32768.0;
                float v0_0_31_1 = as_type<float>(((q0_3_0_1 >> 16u) & 61440u) | 1157627904u) - 2048.0;
                float v0_1_0_1 = as_type<float>((q1_0_0_1 & 15u) | 1258291200u) - 8388608.0;
                float v0_1_1_1 = as_type<float>((q1_0_0_1 & 240u) | 1224736768u) - 524288.0;
                float v0_1_2_1 = as_type<float>((q1_0_0_1 & 3840u) | 1191182336u) - 32768.0;
                float v0_1_3_1 = as_type<float>((q1_0_0_1 & 61440u) | 1157627904u) - 2048.0;
                float v0_1_4_1 = as_type<float>((q1_0_0_1 & 983040u) | 1124073472u) - 128.0;
                float v0_1_5_1 = as_type<float>(((q1_0_0_1 >> 16u) & 240u) | 1224736768u) - 524288.0;
                float v0_1_6_1 = as_type<float>(((q1_0_0_1 >> 16u) & 3840u) | 1191182336u) - 32768.0;
                float v0_1_7_1 = as_type<float>(((q1_0_0_1 >> 16u) & 61440u) | 1157627904u) - 2048.0;
                float v0_1_8_1 = as_type<float>((q1_1_0_1 & 15u) | 1258291200u) - 8388608.0;
                float v0_1_9_1 = as_type<float>((q1_1_0_1 & 240u) | 1224736768u) - 524288.0;
                float v0_1_10_1 = as_type<float>((q1_1_0_1 & 3840u) | 1191182336u) - 32768.0;
                float v0_1_11_1 = as_type<float>((q1_1_0_1 & 61440u) | 1157627904u) - 2048.0;
                float v0_1_12_1 = as_type<float>((q1_1_0_1 & 983040u) | 1124073472u) - 128.0;
                float v0_1_13_1 = as_type<float>(((q1_1_0_1 >> 16u) & 240u) | 1224736768u) - 524288.0;
                float v0_1_14_1 = as_type<float>(((q1_1_0_1 >> 16u) & 3840u) | 1191182336u) - 32768.0;
                float v0_1_15_1 = as_type<float>(((q1_1_0_1 >> 16u) & 61440u) | 1157627904u) - 2048.0;
                float v0_1_16_1 = as_type<float>((q1_2_0_1 & 15u) | 1258291200u) - 8388608.0;
                float v0_1_17_1 = as_type<float>((q1_2_0_1 & 240u) | 1224736768u) - 524288.0;
                float v0_1_18_1 = as_type<float>((q1_2_0_1 & 3840u) | 1191182336u) - 32768.0;
                float v0_1_19_1 = as_type<float>((q1_2_0_1 & 61440u) | 1157627904u) - 2048.0;
                float v0_1_20_1 = as_type<float>((q1_2_0_1 & 983040u) | 1124073472u) - 128.0;
                float v0_1_21_1 = as_type<float>(((q1_2_0_1 >> 16u) & 240u) | 1224736768u) - 524288.0;
                float v0_1_22_1 = as_type<float>(((q1_2_0_1 >> 16u) & 3840u) | 1191182336u) - 32768.0;
                float v0_1_23_1 = as_type<float>(((q1_2_0_1 >> 16u) & 61440u) | 1157627904u) - 2048.0;
                float v0_1_24_1 = as_type<float>((q1_3_0_1 & 15u) | 1258291200u) - 8388608.0;
                float v0_1_25_1 = as_type<float>((q1_3_0_1 & 240u) | 1224736768u) - 524288.0;
                float v0_1_26_1 = as_type<float>((q1_3_0_1 & 3840u) | 1191182336u) - 32768.0;
                float v0_1_27_1 = as_type<float>((q1_3_0_1 & 61440u) | 1157627904u) - 2048.0;
                float v0_1_28_1 = as_type<float>((q1_3_0_1 & 983040u) | 1124073472u) - 128.0;
                float v0_1_29_1 = as_type<float>(((q1_3_0_1 >> 16u) & 240u) | 1224736768u) - 524288.0;
                float v0_1_30_1 = as_type<float>(((q1_3_0_1 >> 16u) & 3840u) | 1191182336u) - 32768.0;
                float v0_1_31_1 = as_type<float>(((q1_3_0_1 >> 16u) & 61440u) | 1157627904u) - 2048.0;
                float v0_2_0_1 = as_type<float>((q2_0_0_1 & 15u) | 1258291200u) - 8388608.0;
                float v0_2_1_1 = as_type<float>((q2_0_0_1 & 240u) | 1224736768u) - 524288.0;
                float v0_2_2_1 = as_type<float>((q2_0_0_1 & 3840u) | 1191182336u) - 32768.0;
                float v0_2_3_1 = as_type<float>((q2_0_0_1 & 61440u) | 1157627904u) - 2048.0;
                float v0_2_4_1 = as_type<float>((q2_0_0_1 & 983040u) | 1124073472u) - 128.0;
                float v0_2_5_1 = as_type<float>(((q2_0_0_1 >> 16u) & 240u) | 1224736768u) - 524288.0;
                float v0_2_6_1 = as_type<float>(((q2_0_0_1 >> 16u) & 3840u) | 1191182336u) - 32768.0;
                float v0_2_7_1 = as_type<float>(((q2_0_0_1 >> 16u) & 61440u) | 1157627904u) - 2048.0;
                float v0_2_8_1 = as_type<float>((q2_1_0_1 & 15u) | 1258291200u) - 8388608.0;
                float v0_2_9_1 = as_type<float>((q2_1_0_1 & 240u) | 1224736768u) - 524288.0;
                float v0_2_10_1 = as_type<float>((q2_1_0_1 & 3840u) | 1191182336u) - 32768.0;
                float v0_2_11_1 = as_type<float>((q2_1_0_1 & 61440u) | 1157627904u) - 2048.0;
                float v0_2_12_1 = as_type<float>((q2_1_0_1 & 983040u) | 1124073472u) - 128.0;
                float v0_2_13_1 = as_type<float>(((q2_1_0_1 >> 16u) & 240u) | 1224736768u) - 524288.0;
                float v0_2_14_1 = as_type<float>(((q2_1_0_1 >> 16u) & 3840u) | 1191182336u) - 32768.0;
                float v0_2_15_1 = as_type<float>(((q2_1_0_1 >> 16u) & 61440u) | 1157627904u) - 2048.0;
                float v0_2_16_1 = as_type<float>((q2_2_0_1 & 15u) | 1258291200u) - 8388608.0;
                float v0_2_17_1 = as_type<float>((q2_2_0_1 & 240u) | 1224736768u) - 524288.0;
                float v0_2_18_1 = as_type<float>((q2_2_0_1 & 3840u) | 1191182336u) - 32768.0;
                float v0_2_19_1 = as_type<float>((q2_2_0_1 & 61440u) | 1157627904u) - 2048.0;
                float v0_2_20_1 = as_type<float>((q2_2_0_1 & 983040u) | 1124073472u) - 128.0;
                float v0_2_21_1 = as_type<float>(((q2_2_0_1 >> 16u) & 240u) | 1224736768u) - 524288.0;
                float v0_2_22_1 = as_type<float>(((q2_2_0_1 >> 16u) & 3840u) | 1191182336u) - 32768.0;
                float v0_2_23_1 = as_type<float>(((q2_2_0_1 >> 16u) & 61440u) | 1157627904u) - 2048.0;
                float v0_2_24_1 = as_type<float>((q2_3_0_1 & 15u) | 1258291200u) - 8388608.0;
                float v0_2_25_1 = as_type<float>((q2_3_0_1 & 240u) | 1224736768u) - 524288.0;
                float v0_2_26_1 = as_type<float>((q2_3_0_1 & 3840u) | 1191182336u) - 32768.0;
                float v0_2_27_1 = as_type<float>((q2_3_0_1 & 61440u) | 1157627904u) - 2048.0;
                float v0_2_28_1 = as_type<float>((q2_3_0_1 & 983040u) | 1124073472u) - 128.0;
                float v0_2_29_1 = as_type<float>(((q2_3_0_1 >> 16u) & 240u) | 1224736768u) - 524288.0;
                float v0_2_30_1 = as_type<float>(((q2_3_0_1 >> 16u) & 3840u) | 1191182336u) - 32768.0;
                float v0_2_31_1 = as_type<float>(((q2_3_0_1 >> 16u) & 61440u) | 1157627904u) - 2048.0;
                float v0_3_0_1 = as_type<float>((q3_0_0_1 & 15u) | 1258291200u) - 8388608.0;
                float v0_3_1_1 = as_type<float>((q3_0_0_1 & 240u) | 1224736768u) - 524288.0;
                float v0_3_2_1 = as_type<float>((q3_0_0_1 & 3840u) | 1191182336u) - 32768.0;
                float v0_3_3_1 = as_type<float>((q3_0_0_1 & 61440u) | 1157627904u) - 2048.0;
                float v0_3_4_1 = as_type<float>((q3_0_0_1 & 983040u) | 1124073472u) - 128.0;
                float v0_3_5_1 = as_type<float>(((q3_0_0_1 >> 16u) & 240u) | 1224736768u) - 524288.0;
                float v0_3_6_1 = as_type<float>(((q3_0_0_1 >> 16u) & 3840u) | 1191182336u) - 32768.0;
                float v0_3_7_1 = as_type<float>(((q3_0_0_1 >> 16u) & 61440u) | 1157627904u) - 2048.0;
                float v0_3_8_1 = as_type<float>((q3_1_0_1 & 15u) | 1258291200u) - 8388608.0;
                float v0_3_9_1 = as_type<float>((q3_1_0_1 & 240u) | 1224736768u) - 524288.0;
                float v0_3_10_1 = as_type<float>((q3_1_0_1 & 3840u) | 1191182336u) - 32768.0;
                float v0_3_11_1 = as_type<float>((q3_1_0_1 & 61440u) | 1157627904u) - 2048.0;
                float v0_3_12_1 = as_type<float>((q3_1_0_1 & 983040u) | 1124073472u) - 128.0;
                float v0_3_13_1 = as_type<float>(((q3_1_0_1 >> 16u) & 240u) | 1224736768u) - 524288.0;
                float v0_3_14_1 = as_type<float>(((q3_1_0_1 >> 16u) & 3840u) | 1191182336u) - 32768.0;
                float v0_3_15_1 = as_type<float>(((q3_1_0_1 >> 16u) & 61440u) | 1157627904u) - 2048.0;
                float v0_3_16_1 = as_type<float>((q3_2_0_1 & 15u) | 1258291200u) - 8388608.0;
                float v0_3_17_1 = as_type<float>((q3_2_0_1 & 240u) | 1224736768u) - 524288.0;
                float v0_3_18_1 = as_type<float>((q3_2_0_1 & 3840u) | 1191182336u) - 32768.0;
                float v0_3_19_1 = as_type<float>((q3_2_0_1 & 61440u) | 1157627904u) - 2048.0;
                float v0_3_20_1 = as_type<float>((q3_2_0_1 & 983040u) | 1124073472u) - 128.0;
                float v0_3_21_1 = as_type<float>(((q3_2_0_1 >> 16u) & 240u) | 1224736768u) - 524288.0;
                float v0_3_22_1 = as_type<float>(((q3_2_0_1 >> 16u) & 3840u) | 1191182336u) - 32768.0;
                float v0_3_23_1 = as_type<float>(((q3_2_0_1 >> 16u) & 61440u) | 1157627904u) - 2048.0;
                float v0_3_24_1 = as_type<float>((q3_3_0_1 & 15u) | 1258291200u) - 8388608.0;
                float v0_3_25_1 = as_type<float>((q3_3_0_1 & 240u) | 1224736768u) - 524288.0;
                float v0_3_26_1 = as_type<float>((q3_3_0_1 & 3840u) | 1191182336u) - 32768.0;
                float v0_3_27_1 = as_type<float>((q3_3_0_1 & 61440u) | 1157627904u) - 2048.0;
                float v0_3_28_1 = as_type<float>((q3_3_0_1 & 983040u) | 1124073472u) - 128.0;
                float v0_3_29_1 = as_type<float>(((q3_3_0_1 >> 16u) & 240u) | 1224736768u) - 524288.0;
                float v0_3_30_1 = as_type<float>(((q3_3_0_1 >> 16u) & 3840u) | 1191182336u) - 32768.0;
                float v0_3_31_1 = as_type<float>(((q3_3_0_1 >> 16u) & 61440u) | 1157627904u) - 2048.0;
                metal::float4 i0_0_0_1 = staged.inner[place_6 + 0u];
                metal::float4 i0_0_1_1 = staged.inner[place_6 + 1u];
                metal::float4 i0_0_2_1 = staged.inner[place_6 + 2u];
                metal::float4 i0_0_3_1 = staged.inner[place_6 + 3u];
                metal::float4 i0_0_4_1 = staged.inner[place_6 + 4u];
                metal::float4 i0_0_5_1 = staged.inner[place_6 + 5u];
                metal::float4 i0_0_6_1 = staged.inner[place_6 + 6u];
                metal::float4 i0_0_7_1 = staged.inner[place_6 + 7u];
                all0_0_1 = i0_0_0_1.x;
                float _e5761 = all0_0_1;
                all0_0_1 = _e5761 + i0_0_0_1.y;
                float _e5764 = all0_0_1;
                all0_0_1 = _e5764 + i0_0_0_1.z;
                float _e5767 = all0_0_1;
                all0_0_1 = _e5767 + i0_0_0_1.w;
                float _e5770 = all0_0_1;
                all0_0_1 = _e5770 + i0_0_1_1.x;
                float _e5773 = all0_0_1;
                all0_0_1 = _e5773 + i0_0_1_1.y;
                float _e5776 = all0_0_1;
                all0_0_1 = _e5776 + i0_0_1_1.z;
                float _e5779 = all0_0_1;
                all0_0_1 = _e5779 + i0_0_1_1.w;
                float _e5782 = all0_0_1;
                all0_0_1 = _e5782 + i0_0_2_1.x;
                float _e5785 = all0_0_1;
                all0_0_1 = _e5785 + i0_0_2_1.y;
                float _e5788 = all0_0_1;
                all0_0_1 = _e5788 + i0_0_2_1.z;
                float _e5791 = all0_0_1;
                all0_0_1 = _e5791 + i0_0_2_1.w;
                float _e5794 = all0_0_1;
                all0_0_1 = _e5794 + i0_0_3_1.x;
                float _e5797 = all0_0_1;
                all0_0_1 = _e5797 + i0_0_3_1.y;
                float _e5800 = all0_0_1;
                all0_0_1 = _e5800 + i0_0_3_1.z;
                float _e5803 = all0_0_1;
                all0_0_1 = _e5803 + i0_0_3_1.w;
                float _e5806 = all0_0_1;
                all0_0_1 = _e5806 + i0_0_4_1.x;
                float _e5809 = all0_0_1;
                all0_0_1 = _e5809 + i0_0_4_1.y;
                float _e5812 = all0_0_1;
                all0_0_1 = _e5812 + i0_0_4_1.z;
                float _e5815 = all0_0_1;
                all0_0_1 = _e5815 + i0_0_4_1.w;
                float _e5818 = all0_0_1;
                all0_0_1 = _e5818 + i0_0_5_1.x;
                float _e5821 = all0_0_1;
                all0_0_1 = _e5821 + i0_0_5_1.y;
                float _e5824 = all0_0_1;
                all0_0_1 = _e5824 + i0_0_5_1.z;
                float _e5827 = all0_0_1;
                all0_0_1 = _e5827 + i0_0_5_1.w;
                float _e5830 = all0_0_1;
                all0_0_1 = _e5830 + i0_0_6_1.x;
                float _e5833 = all0_0_1;
                all0_0_1 = _e5833 + i0_0_6_1.y;
                float _e5836 = all0_0_1;
                all0_0_1 = _e5836 + i0_0_6_1.z;
                float _e5839 = all0_0_1;
                all0_0_1 = _e5839 + i0_0_6_1.w;
                float _e5842 = all0_0_1;
                all0_0_1 = _e5842 + i0_0_7_1.x;
                float _e5845 = all0_0_1;
                all0_0_1 = _e5845 + i0_0_7_1.y;
                float _e5848 = all0_0_1;
                all0_0_1 = _e5848 + i0_0_7_1.z;
                float _e5851 = all0_0_1;
                all0_0_1 = _e5851 + i0_0_7_1.w;
                dot0_0_1 = v0_0_0_1 * i0_0_0_1.x;
                float _e5858 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_1_1, i0_0_0_1.y, _e5858);
                float _e5861 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_2_1, i0_0_0_1.z, _e5861);
                float _e5864 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_3_1, i0_0_0_1.w, _e5864);
                float _e5867 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_4_1, i0_0_1_1.x, _e5867);
                float _e5870 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_5_1, i0_0_1_1.y, _e5870);
                float _e5873 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_6_1, i0_0_1_1.z, _e5873);
                float _e5876 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_7_1, i0_0_1_1.w, _e5876);
                float _e5879 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_8_1, i0_0_2_1.x, _e5879);
                float _e5882 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_9_1, i0_0_2_1.y, _e5882);
                float _e5885 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_10_1, i0_0_2_1.z, _e5885);
                float _e5888 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_11_1, i0_0_2_1.w, _e5888);
                float _e5891 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_12_1, i0_0_3_1.x, _e5891);
                float _e5894 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_13_1, i0_0_3_1.y, _e5894);
                float _e5897 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_14_1, i0_0_3_1.z, _e5897);
                float _e5900 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_15_1, i0_0_3_1.w, _e5900);
                float _e5903 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_16_1, i0_0_4_1.x, _e5903);
                float _e5906 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_17_1, i0_0_4_1.y, _e5906);
                float _e5909 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_18_1, i0_0_4_1.z, _e5909);
                float _e5912 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_19_1, i0_0_4_1.w, _e5912);
                float _e5915 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_20_1, i0_0_5_1.x, _e5915);
                float _e5918 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_21_1, i0_0_5_1.y, _e5918);
                float _e5921 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_22_1, i0_0_5_1.z, _e5921);
                float _e5924 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_23_1, i0_0_5_1.w, _e5924);
                float _e5927 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_24_1, i0_0_6_1.x, _e5927);
                float _e5930 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_25_1, i0_0_6_1.y, _e5930);
                float _e5933 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_26_1, i0_0_6_1.z, _e5933);
                float _e5936 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_27_1, i0_0_6_1.w, _e5936);
                float _e5939 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_28_1, i0_0_7_1.x, _e5939);
                float _e5942 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_29_1, i0_0_7_1.y, _e5942);
                float _e5945 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_30_1, i0_0_7_1.z, _e5945);
                float _e5948 = dot0_0_1;
                dot0_0_1 = metal::fma(v0_0_31_1, i0_0_7_1.w, _e5948);
                float _e5950 = dot0_0_1;
                float _e5951 = all0_0_1;
                float _e5952 = acc0_;
                acc0_ = metal::fma(_e4677, _e5950, metal::fma(_e4681, _e5951, _e5952));
                dot1_0_1 = v0_1_0_1 * i0_0_0_1.x;
                float _e5959 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_1_1, i0_0_0_1.y, _e5959);
                float _e5962 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_2_1, i0_0_0_1.z, _e5962);
                float _e5965 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_3_1, i0_0_0_1.w, _e5965);
                float _e5968 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_4_1, i0_0_1_1.x, _e5968);
                float _e5971 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_5_1, i0_0_1_1.y, _e5971);
                float _e5974 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_6_1, i0_0_1_1.z, _e5974);
                float _e5977 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_7_1, i0_0_1_1.w, _e5977);
                float _e5980 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_8_1, i0_0_2_1.x, _e5980);
                float _e5983 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_9_1, i0_0_2_1.y, _e5983);
                float _e5986 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_10_1, i0_0_2_1.z, _e5986);
                float _e5989 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_11_1, i0_0_2_1.w, _e5989);
                float _e5992 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_12_1, i0_0_3_1.x, _e5992);
                float _e5995 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_13_1, i0_0_3_1.y, _e5995);
                float _e5998 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_14_1, i0_0_3_1.z, _e5998);
                float _e6001 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_15_1, i0_0_3_1.w, _e6001);
                float _e6004 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_16_1, i0_0_4_1.x, _e6004);
                float _e6007 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_17_1, i0_0_4_1.y, _e6007);
                float _e6010 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_18_1, i0_0_4_1.z, _e6010);
                float _e6013 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_19_1, i0_0_4_1.w, _e6013);
                float _e6016 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_20_1, i0_0_5_1.x, _e6016);
                float _e6019 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_21_1, i0_0_5_1.y, _e6019);
                float _e6022 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_22_1, i0_0_5_1.z, _e6022);
                float _e6025 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_23_1, i0_0_5_1.w, _e6025);
                float _e6028 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_24_1, i0_0_6_1.x, _e6028);
                float _e6031 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_25_1, i0_0_6_1.y, _e6031);
                float _e6034 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_26_1, i0_0_6_1.z, _e6034);
                float _e6037 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_27_1, i0_0_6_1.w, _e6037);
                float _e6040 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_28_1, i0_0_7_1.x, _e6040);
                float _e6043 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_29_1, i0_0_7_1.y, _e6043);
                float _e6046 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_30_1, i0_0_7_1.z, _e6046);
                float _e6049 = dot1_0_1;
                dot1_0_1 = metal::fma(v0_1_31_1, i0_0_7_1.w, _e6049);
                float _e6051 = dot1_0_1;
                float _e6052 = all0_0_1;
                float _e6053 = acc1_;
                acc1_ = metal::fma(_e4689, _e6051, metal::fma(_e4693, _e6052, _e6053));
                dot2_0_1 = v0_2_0_1 * i0_0_0_1.x;
                float _e6060 = dot2_0_1;
                dot2_0_1 = metal::fma(v0_2_1_1, i0_0_0_1.y, _e6060);
                float _e6063 = dot2_0_1;
                dot2_0_1 = metal::fma(v0_2_2_1, i0_0_0_1.z, _e6063);
                float _e6066 = dot2_0_1;
                dot2_0_1 = metal::fma(v0_2_3_1, i0_0_0_1.w, _e6066);
                float _e6069 = dot2_0_1;
                dot2_0_1 = metal::fma(v0_2_4_1, i0_0_1_1.x, _e6069);
                float _e6072 = dot2_0_1;
                dot2_0_1 = metal::fma(v0_2_5_1, i0_0_1_1.y, _e6072);
                float _e6075 = dot2_0_1;
                dot2_0_1 = metal::fma(v0_2_6_1, i0_0_1_1.z, _e6075);
                float _e6078 = dot2_0_1;
                dot2_0_1 = metal::fma(v0_2_7_1, i0_0_1_1.w, _e6078);
                float _e6081 = dot2_0_1;
                dot2_0_1 = metal::fma(v0_2_8_1, i0_0_2_1.x, _e6081);
                float _e6084 = dot2_0_1;
                dot2_0_1 = metal::fma(v0_2_9_1, i0_0_2_1.y, _e6084);
                float _e6087 = dot2_0_1;
                dot2_0_1 = metal::fma(v0_2_10_1, i0_0_2_1.z, _e6087);
                float _e6090 = dot2_0_1;
                dot2_0_1 = metal::fma(v0_2_11_1, i0_0_2_1.w, _e6090);
                float _e6093 = dot2_0_1;
                dot2_0_1 = metal::fma(v0_2_12_1, i0_0_3_1.x, _e6093);
                float _e6096 = dot2_0_1;
                dot2_0_1 = metal::fma(v0_2_13_1, i0_0_3_1.y, _e6096);
                float _e6099 = dot2_0_1;
                dot2_0_1 = metal::fma(v0_2_14_1, i0_0_3_1.z, _e6099);
                float _e6102 = dot2_0_1;
                dot2_0_1 = metal::fma(v0_2_15_1, i0_0_3_1.w, _e6102);
                float _e6105 = dot2_0_1;
                dot2_0_1 = metal::fma(v0_2_16_1, i0_0_4_1.x, _e6105);
                float _e6108 = dot2_0_1;
                dot2_0_1 = metal::fma(v0_2_17_1, i0_0_4_1.y, _e6108);
                float _e6111 = dot2_0_1;
                dot2_0_1 = metal::fma(v0_2_18_1, i0_0_4_1.z, _e6111);
                float _e6114 = dot2_0_1;
                dot2_0_1 = metal::fma(v0_2_19_1, i0_0_4_1.w, _e6114);
                float _e6117 = dot2_0_1;
                dot2_0_1 = metal::fma(v0_2_20_1, i0_0_5_1.x, _e6117);
                float _e6120 = dot2_0_1;
                dot2_0_1 = metal::fma(v0_2_21_1, i0_0_5_1.y, _e6120);
                float _e6123 = dot2_0_1;
                dot2_0_1 = metal::fma(v0_2_22_1, i0_0_5_1.z, _e6123);
                float _e6126 = dot2_0_1;
                dot2_0_1 = metal::fma(v0_2_23_1, i0_0_5_1.w, _e6126);
                float _e6129 = dot2_0_1;
                dot2_0_1 = metal::fma(v0_2_24_1, i0_0_6_1.x, _e6129);
                float _e6132 = dot2_0_1;
                dot2_0_1 = metal::fma(v0_2_25_1, i0_0_6_1.y, _e6132);
                float _e6135 = dot2_0_1;
                dot2_0_1 = metal::fma(v0_2_26_1, i0_0_6_1.z, _e6135);
                float _e6138 = dot2_0_1;
                dot2_0_1 = metal::fma(v0_2_27_1, i0_0_6_1.w, _e6138);
                float _e6141 = dot2_0_1;
                dot2_0_1 = metal::fma(v0_2_28_1, i0_0_7_1.x, _e6141);
                float _e6144 = dot2_0_1;
                dot2_0_1 = metal::fma(v0_2_29_1, i0_0_7_1.y, _e6144);
                float _e6147 = dot2_0_1;
                dot2_0_1 = metal::fma(v0_2_30_1, i0_0_7_1.z, _e6147);
                float _e6150 = dot2_0_1;
                dot2_0_1 = metal::fma(v0_2_31_1, i0_0_7_1.w, _e6150);
                float _e6152 = dot2_0_1;
                float _e6153 = all0_0_1;
                float _e6154 = acc2_;
                acc2_ = metal::fma(_e4701, _e6152, metal::fma(_e4705, _e6153, _e6154));
                dot3_0_1 = v0_3_0_1 * i0_0_0_1.x;
                float _e6161 = dot3_0_1;
                dot3_0_1 = metal::fma(v0_3_1_1, i0_0_0_1.y, _e6161);
                float _e6164 = dot3_0_1;
                dot3_0_1 = metal::fma(v0_3_2_1, i0_0_0_1.z, _e6164);
                float _e6167 = dot3_0_1;
                dot3_0_1 = metal::fma(v0_3_3_1, i0_0_0_1.w, _e6167);
                float _e6170 = dot3_0_1;
                dot3_0_1 = metal::fma(v0_3_4_1, i0_0_1_1.x, _e6170);
                float _e6173 = dot3_0_1;
                dot3_0_1 = metal::fma(v0_3_5_1, i0_0_1_1.y, _e6173);
                float _e6176 = dot3_0_1;
                dot3_0_1 = metal::fma(v0_3_6_1, i0_0_1_1.z, _e6176);
                float _e6179 = dot3_0_1;
                dot3_0_1 = metal::fma(v0_3_7_1, i0_0_1_1.w, _e6179);
                float _e6182 = dot3_0_1;
                dot3_0_1 = metal::fma(v0_3_8_1, i0_0_2_1.x, _e6182);
                float _e6185 = dot3_0_1;
                dot3_0_1 = metal::fma(v0_3_9_1, i0_0_2_1.y, _e6185);
                float _e6188 = dot3_0_1;
                dot3_0_1 = metal::fma(v0_3_10_1, i0_0_2_1.z, _e6188);
                float _e6191 = dot3_0_1;
                dot3_0_1 = metal::fma(v0_3_11_1, i0_0_2_1.w, _e6191);
                float _e6194 = dot3_0_1;
                dot3_0_1 = metal::fma(v0_3_12_1, i0_0_3_1.x, _e6194);
                float _e6197 = dot3_0_1;
                dot3_0_1 = metal::fma(v0_3_13_1, i0_0_3_1.y, _e6197);
                float _e6200 = dot3_0_1;
                dot3_0_1 = metal::fma(v0_3_14_1, i0_0_3_1.z, _e6200);
                float _e6203 = dot3_0_1;
                dot3_0_1 = metal::fma(v0_3_15_1, i0_0_3_1.w, _e6203);
                float _e6206 = dot3_0_1;
                dot3_0_1 = metal::fma(v0_3_16_1, i0_0_4_1.x, _e6206);
                float _e6209 = dot3_0_1;
                dot3_0_1 = metal::fma(v0_3_17_1, i0_0_4_1.y, _e6209);
                float _e6212 = dot3_0_1;
                dot3_0_1 = metal::fma(v0_3_18_1, i0_0_4_1.z, _e6212);
                float _e6215 = dot3_0_1;
                dot3_0_1 = metal::fma(v0_3_19_1, i0_0_4_1.w, _e6215);
                float _e6218 = dot3_0_1;
                dot3_0_1 = metal::fma(v0_3_20_1, i0_0_5_1.x, _e6218);
                float _e6221 = dot3_0_1;
                dot3_0_1 = metal::fma(v0_3_21_1, i0_0_5_1.y, _e6221);
                float _e6224 = dot3_0_1;
                dot3_0_1 = metal::fma(v0_3_22_1, i0_0_5_1.z, _e6224);
                float _e6227 = dot3_0_1;
                dot3_0_1 = metal::fma(v0_3_23_1, i0_0_5_1.w, _e6227);
                float _e6230 = dot3_0_1;
                dot3_0_1 = metal::fma(v0_3_24_1, i0_0_6_1.x, _e6230);
                float _e6233 = dot3_0_1;
                dot3_0_1 = metal::fma(v0_3_25_1, i0_0_6_1.y, _e6233);
                float _e6236 = dot3_0_1;
                dot3_0_1 = metal::fma(v0_3_26_1, i0_0_6_1.z, _e6236);
                float _e6239 = dot3_0_1;
                dot3_0_1 = metal::fma(v0_3_27_1, i0_0_6_1.w, _e6239);
                float _e6242 = dot3_0_1;
                dot3_0_1 = metal::fma(v0_3_28_1, i0_0_7_1.x, _e6242);
                float _e6245 = dot3_0_1;
                dot3_0_1 = metal::fma(v0_3_29_1, i0_0_7_1.y, _e6245);
                float _e6248 = dot3_0_1;
                dot3_0_1 = metal::fma(v0_3_30_1, i0_0_7_1.z, _e6248);
                float _e6251 = dot3_0_1;
                dot3_0_1 = metal::fma(v0_3_31_1, i0_0_7_1.w, _e6251);
                float _e6253 = dot3_0_1;
                float _e6254 = all0_0_1;
                float _e6255 = acc3_;
                acc3_ = metal::fma(_e4713, _e6253, metal::fma(_e4717, _e6254, _e6255));
            }
        }
    }
    float _e6270 = acc0_;
    sums.inner[(((team * 4u) + 0u) * 32u) + lane] = _e6270;
    float _e6280 = acc1_;
    sums.inner[(((team * 4u) + 1u) * 32u) + lane] = _e6280;
    float _e6290 = acc2_;
    sums.inner[(((team * 4u) + 2u) * 32u) + lane] = _e6290;
    float _e6300 = acc3_;
    sums.inner[(((team * 4u) + 3u) * 32u) + lane] = _e6300;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if ((lane >> 2u) < 4u) {
        uint slot = (team * 4u) + (lane >> 2u);
        uint at_1 = (slot * 32u) + ((lane & 3u) * 8u);
        float _e6326 = sums.inner[at_1];
        float _e6331 = sums.inner[at_1 + 1u];
        float _e6337 = sums.inner[at_1 + 2u];
        float _e6342 = sums.inner[at_1 + 3u];
        float _e6349 = sums.inner[at_1 + 4u];
        float _e6354 = sums.inner[at_1 + 5u];
        float _e6360 = sums.inner[at_1 + 6u];
        float _e6365 = sums.inner[at_1 + 7u];
        part_1.inner[(slot * 4u) + (lane & 3u)] = ((_e6326 + _e6331) + (_e6337 + _e6342)) + ((_e6349 + _e6354) + (_e6360 + _e6365));
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if (lane < 4u) {
        uint at_2 = ((team * 4u) + lane) * 4u;
        float _e6378 = part_1.inner[at_2];
        float _e6383 = part_1.inner[at_2 + 1u];
        float _e6389 = part_1.inner[at_2 + 2u];
        float _e6394 = part_1.inner[at_2 + 3u];
        float sum_1 = (_e6378 + _e6383) + (_e6389 + _e6394);
        fin.inner[(team * 8u) + lane] = sum_1;
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if (lane < 4u) {
        uint n = 0u + lane;
        uint r = n % 4u;
        uint t = n / 4u;
        float gate = fin.inner[(team * 8u) + lane];
        float up = fin.inner[metal::min(((team * 8u) + lane) + 2u, 63u)];
        if (r < 2u) {
            uint _e6431 = p.rows;
            if ((first_1 + r) < _e6431) {
                uint _e6436 = p.rows;
                y[((rank * _e6436) + first_1) + r] = (gate / (1.0 + metal::exp(-(gate)))) * up;
            }
        }
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    return;
}
