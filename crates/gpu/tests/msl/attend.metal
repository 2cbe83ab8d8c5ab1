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
};

typedef float type_1[1];
typedef metal::uint4 type_4[1];
typedef uint type_5[1];
struct Parameters {
    uint query_heads;
    uint key_value_heads;
    uint dim;
    uint first;
    uint position;
    uint scale;
};
struct type_6 {
    float inner[256];
};
struct type_8 {
    metal::float4 inner[16];
};

struct main_Input {
};
[[max_total_threads_per_threadgroup(256)]] kernel void main_(
  uint lid [[thread_index_in_threadgroup]]
, metal::uint3 wid [[threadgroup_position_in_grid]]
, device type_1 const& query [[buffer(1)]]
, device type_1 const& both [[buffer(2)]]
, device type_4 const& keys [[buffer(3)]]
, device type_5 const& values [[buffer(4)]]
, device type_1& y [[buffer(5)]]
, device type_5 const& control [[buffer(6)]]
, constant Parameters& p [[buffer(0)]]
, threadgroup type_6& red
, threadgroup type_6& q
, threadgroup type_8& scores
, threadgroup type_8& weights
, constant _mslBufferSizes& _buffer_sizes [[buffer(7)]]
) {
    float greatest = -300000000000000000000000000000000000000.0;
    float total = 0.0;
    float sum = 0.0;
    float more = 0.0;
    uint block = {};
    float score = {};
    uint d = {};
    metal::float4 best = {};
    uint fourth = {};
    metal::float4 four = {};
    uint fourth_1 = {};
    float near = {};
    float far = {};
    uint j = {};
    float all = {};
    uint other = 1u;
    float all_1 = {};
    uint other_1 = 1u;
    uint _e4 = control[0];
    if (_e4 != 0u) {
        return;
    }
    uint _e9 = p.first;
    uint row = _e9 + wid.y;
    uint _e14 = p.position;
    uint position = _e14 + wid.y;
    uint head = wid.x;
    uint _e21 = p.query_heads;
    uint _e24 = p.key_value_heads;
    uint pair_head = head / (_e21 / _e24);
    uint _e29 = p.query_heads;
    uint _e34 = p.dim;
    uint at_query = ((row * _e29) + head) * _e34;
    uint _e38 = p.dim;
    if (lid < _e38) {
        float _e45 = query[at_query + lid];
        uint _e48 = p.scale;
        q.inner[lid] = _e45 * as_type<float>(_e48);
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    uint _e53 = p.dim;
    uint words = _e53 / 2u;
    uint parts = 256u / words;
    uint word = lid % words;
    uint part = lid / words;
    block = 0u;
    bool loop_init = true;
    while(true) {
        if (!loop_init) {
            uint _e603 = block;
            block = _e603 + 64u;
        }
        loop_init = false;
        uint _e69 = block;
        if (_e69 <= position) {
        } else {
            break;
        }
        {
            uint _e71 = block;
            uint mine = _e71 + (lid >> 2u);
            score = 0.0;
            if (mine <= position) {
                uint _e80 = p.key_value_heads;
                uint _e85 = p.dim;
                uint at = ((mine * _e80) + pair_head) * _e85;
                d = (lid & 3u) * 8u;
                bool loop_init_1 = true;
                while(true) {
                    if (!loop_init_1) {
                        uint _e178 = d;
                        d = _e178 + 32u;
                    }
                    loop_init_1 = false;
                    uint _e92 = d;
                    uint _e95 = p.dim;
                    if (_e92 < _e95) {
                    } else {
                        break;
                    }
                    {
                        uint _e98 = d;
                        metal::uint4 eight = keys[(at + _e98) >> 3u];
                        metal::float2 a = float2(as_type<half2>(eight.x));
                        metal::float2 b = float2(as_type<half2>(eight.y));
                        metal::float2 c = float2(as_type<half2>(eight.z));
                        metal::float2 e = float2(as_type<half2>(eight.w));
                        uint _e113 = d;
                        float _e117 = q.inner[_e113 + 1u];
                        uint _e120 = d;
                        float _e122 = q.inner[_e120];
                        float _e124 = score;
                        score = metal::fma(_e117, a.y, metal::fma(_e122, a.x, _e124));
                        uint _e128 = d;
                        float _e132 = q.inner[_e128 + 3u];
                        uint _e135 = d;
                        float _e139 = q.inner[_e135 + 2u];
                        float _e141 = score;
                        score = metal::fma(_e132, b.y, metal::fma(_e139, b.x, _e141));
                        uint _e145 = d;
                        float _e149 = q.inner[_e145 + 5u];
                        uint _e152 = d;
                        float _e156 = q.inner[_e152 + 4u];
                        float _e158 = score;
                        score = metal::fma(_e149, c.y, metal::fma(_e156, c.x, _e158));
                        uint _e162 = d;
                        float _e166 = q.inner[_e162 + 7u];
                        uint _e169 = d;
                        float _e173 = q.inner[_e169 + 6u];
                        float _e175 = score;
                        score = metal::fma(_e166, e.y, metal::fma(_e173, e.x, _e175));
                    }
                }
            }
            float _e183 = score;
            red.inner[lid] = _e183;
            metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
            uint same = lid & 252u;
            float _e188 = red.inner[same];
            float _e193 = red.inner[same + 1u];
            float _e199 = red.inner[same + 2u];
            float _e204 = red.inner[same + 3u];
            score = (_e188 + _e193) + (_e199 + _e204);
            if (mine > position) {
                score = -300000000000000000000000000000000000000.0;
            }
            if ((lid & 3u) == 0u) {
                float _e222 = score;
                scores.inner[lid >> 4u][(lid >> 2u) & 3u] = _e222;
            }
            metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
            metal::float4 _e225 = scores.inner[0];
            best = _e225;
            fourth = 1u;
            bool loop_init_2 = true;
            while(true) {
                if (!loop_init_2) {
                    uint _e238 = fourth;
                    fourth = _e238 + 1u;
                }
                loop_init_2 = false;
                uint _e229 = fourth;
                if (_e229 < 16u) {
                } else {
                    break;
                }
                {
                    metal::float4 _e232 = best;
                    uint _e234 = fourth;
                    metal::float4 _e236 = scores.inner[_e234];
                    best = metal::max(_e232, _e236);
                }
            }
            float _e242 = best.x;
            float _e244 = best.y;
            float _e247 = best.z;
            float _e249 = best.w;
            float most = metal::max(metal::max(_e242, _e244), metal::max(_e247, _e249));
            if ((lid & 3u) == 0u) {
                float _e265 = score;
                weights.inner[lid >> 4u][(lid >> 2u) & 3u] = (mine > position) ? 0.0 : metal::exp(_e265 - most);
            }
            metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
            metal::float4 _e273 = weights.inner[0];
            four = _e273;
            fourth_1 = 1u;
            bool loop_init_3 = true;
            while(true) {
                if (!loop_init_3) {
                    uint _e286 = fourth_1;
                    fourth_1 = _e286 + 1u;
                }
                loop_init_3 = false;
                uint _e277 = fourth_1;
                if (_e277 < 16u) {
                } else {
                    break;
                }
                {
                    metal::float4 _e280 = four;
                    uint _e282 = fourth_1;
                    metal::float4 _e284 = weights.inner[_e282];
                    four = _e280 + _e284;
                }
            }
            float _e290 = four.x;
            float _e292 = four.y;
            float _e295 = four.z;
            float _e297 = four.w;
            float weight = (_e290 + _e292) + (_e295 + _e297);
            near = 0.0;
            far = 0.0;
            if (part < parts) {
                uint _e306 = block;
                uint count = metal::min(64u, (position - _e306) + 1u);
                j = part;
                bool loop_init_4 = true;
                while(true) {
                    if (!loop_init_4) {
                        uint _e537 = j;
                        j = _e537 + (4u * parts);
                    }
                    loop_init_4 = false;
                    uint _e312 = j;
                    if ((_e312 + (3u * parts)) < count) {
                    } else {
                        break;
                    }
                    {
                        {
                            uint _e318 = block;
                            uint _e319 = j;
                            uint _e326 = p.key_value_heads;
                            uint _e332 = values[(((((_e318 + _e319) + (0u * parts)) * _e326) + pair_head) * words) + word];
                            metal::float2 pair = float2(as_type<half2>(_e332));
                            uint _e335 = j;
                            uint _e342 = j;
                            float _e349 = weights.inner[(_e335 + (0u * parts)) >> 2u][(_e342 + (0u * parts)) & 3u];
                            float _e351 = near;
                            near = metal::fma(_e349, pair.x, _e351);
                            uint _e354 = j;
                            uint _e361 = j;
                            float _e368 = weights.inner[(_e354 + (0u * parts)) >> 2u][(_e361 + (0u * parts)) & 3u];
                            float _e370 = far;
                            far = metal::fma(_e368, pair.y, _e370);
                        }
                        {
                            uint _e373 = block;
                            uint _e374 = j;
                            uint _e381 = p.key_value_heads;
                            uint _e387 = values[(((((_e373 + _e374) + (1u * parts)) * _e381) + pair_head) * words) + word];
                            metal::float2 pair_1 = float2(as_type<half2>(_e387));
                            uint _e390 = j;
                            uint _e397 = j;
                            float _e404 = weights.inner[(_e390 + (1u * parts)) >> 2u][(_e397 + (1u * parts)) & 3u];
                            float _e406 = near;
                            near = metal::fma(_e404, pair_1.x, _e406);
                            uint _e409 = j;
                            uint _e416 = j;
                            float _e423 = weights.inner[(_e409 + (1u * parts)) >> 2u][(_e416 + (1u * parts)) & 3u];
                            float _e425 = far;
                            far = metal::fma(_e423, pair_1.y, _e425);
                        }
                        {
                            uint _e428 = block;
                            uint _e429 = j;
                            uint _e436 = p.key_value_heads;
                            uint _e442 = values[(((((_e428 + _e429) + (2u * parts)) * _e436) + pair_head) * words) + word];
                            metal::float2 pair_2 = float2(as_type<half2>(_e442));
                            uint _e445 = j;
                            uint _e452 = j;
                            float _e459 = weights.inner[(_e445 + (2u * parts)) >> 2u][(_e452 + (2u * parts)) & 3u];
                            float _e461 = near;
                            near = metal::fma(_e459, pair_2.x, _e461);
                            uint _e464 = j;
                            uint _e471 = j;
                            float _e478 = weights.inner[(_e464 + (2u * parts)) >> 2u][(_e471 + (2u * parts)) & 3u];
                            float _e480 = far;
                            far = metal::fma(_e478, pair_2.y, _e480);
                        }
                        {
                            uint _e483 = block;
                            uint _e484 = j;
                            uint _e491 = p.key_value_heads;
                            uint _e497 = values[(((((_e483 + _e484) + (3u * parts)) * _e491) + pair_head) * words) + word];
                            metal::float2 pair_3 = float2(as_type<half2>(_e497));
                            uint _e500 = j;
                            uint _e507 = j;
                            float _e514 = weights.inner[(_e500 + (3u * parts)) >> 2u][(_e507 + (3u * parts)) & 3u];
                            float _e516 = near;
                            near = metal::fma(_e514, pair_3.x, _e516);
                            uint _e519 = j;
                            uint _e526 = j;
                            float _e533 = weights.inner[(_e519 + (3u * parts)) >> 2u][(_e526 + (3u * parts)) & 3u];
                            float _e535 = far;
                            far = metal::fma(_e533, pair_3.y, _e535);
                        }
                    }
                }
                bool loop_init_5 = true;
                while(true) {
                    if (!loop_init_5) {
                        uint _e583 = j;
                        j = _e583 + parts;
                    }
                    loop_init_5 = false;
                    uint _e541 = j;
                    if (_e541 < count) {
                    } else {
                        break;
                    }
                    {
                        {
                            uint _e544 = block;
                            uint _e545 = j;
                            uint _e549 = p.key_value_heads;
                            uint _e555 = values[((((_e544 + _e545) * _e549) + pair_head) * words) + word];
                            metal::float2 pair_4 = float2(as_type<half2>(_e555));
                            uint _e558 = j;
                            uint _e562 = j;
                            float _e566 = weights.inner[_e558 >> 2u][_e562 & 3u];
                            float _e568 = near;
                            near = metal::fma(_e566, pair_4.x, _e568);
                            uint _e571 = j;
                            uint _e575 = j;
                            float _e579 = weights.inner[_e571 >> 2u][_e575 & 3u];
                            float _e581 = far;
                            far = metal::fma(_e579, pair_4.y, _e581);
                        }
                    }
                }
            }
            float _e585 = greatest;
            float now = metal::max(_e585, most);
            float _e587 = greatest;
            float keep = metal::exp(_e587 - now);
            float share = metal::exp(most - now);
            float _e592 = total;
            total = metal::fma(_e592, keep, weight * share);
            float _e595 = sum;
            float _e596 = near;
            sum = metal::fma(_e595, keep, _e596 * share);
            float _e599 = more;
            float _e600 = far;
            more = metal::fma(_e599, keep, _e600 * share);
            greatest = now;
        }
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    float _e608 = sum;
    red.inner[lid] = _e608;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if (lid < words) {
        float _e612 = red.inner[lid];
        all = _e612;
        bool loop_init_6 = true;
        while(true) {
            if (!loop_init_6) {
                uint _e626 = other;
                other = _e626 + 1u;
            }
            loop_init_6 = false;
            uint _e616 = other;
            if (_e616 < parts) {
            } else {
                break;
            }
            {
                float _e618 = all;
                uint _e620 = other;
                float _e624 = red.inner[lid + (_e620 * words)];
                all = _e618 + _e624;
            }
        }
        float _e636 = all;
        float _e637 = total;
        uint _e644 = p.dim;
        float _e652 = both[(((at_query * 2u) + _e644) + (lid * 2u)) + 0u];
        y[(at_query + (lid * 2u)) + 0u] = (_e636 / _e637) * (1.0 / (1.0 + metal::exp(-(_e652))));
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    float _e662 = more;
    red.inner[lid] = _e662;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if (lid < words) {
        float _e666 = red.inner[lid];
        all_1 = _e666;
        bool loop_init_7 = true;
        while(true) {
            if (!loop_init_7) {
                uint _e680 = other_1;
                other_1 = _e680 + 1u;
            }
            loop_init_7 = false;
            uint _e670 = other_1;
            if (_e670 < parts) {
            } else {
                break;
            }
            {
                float _e672 = all_1;
                uint _e674 = other_1;
                float _e678 = red.inner[lid + (_e674 * words)];
                all_1 = _e672 + _e678;
            }
        }
        float _e690 = all_1;
        float _e691 = total;
        uint _e698 = p.dim;
        float _e706 = both[(((at_query * 2u) + _e698) + (lid * 2u)) + 1u];
        y[(at_query + (lid * 2u)) + 1u] = (_e690 / _e691) * (1.0 / (1.0 + metal::exp(-(_e706))));
        return;
    } else {
        return;
    }
}
