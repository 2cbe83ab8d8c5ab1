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
    uint window;
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
, device type_1 const& sinks [[buffer(2)]]
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
    bool local = {};
    metal::float4 best = {};
    uint fourth = {};
    bool local_1 = {};
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
    uint _e21 = p.window;
    uint _e25 = p.window;
    uint seen = metal::max(position + 1u, _e21) - _e25;
    uint last = position / 64u;
    uint _e31 = p.window;
    uint begin = (last - metal::min(last, (_e31 + 63u) / 64u)) * 64u;
    uint head = wid.x;
    uint _e43 = p.query_heads;
    uint _e46 = p.key_value_heads;
    uint pair_head = head / (_e43 / _e46);
    uint _e51 = p.query_heads;
    uint _e56 = p.dim;
    uint at_query = ((row * _e51) + head) * _e56;
    uint _e60 = p.dim;
    if (lid < _e60) {
        float _e67 = query[at_query + lid];
        uint _e70 = p.scale;
        q.inner[lid] = _e67 * as_type<float>(_e70);
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    uint _e75 = p.dim;
    uint words = _e75 / 2u;
    uint parts = 256u / words;
    uint word = lid % words;
    uint part = lid / words;
    block = begin;
    bool loop_init = true;
    while(true) {
        if (!loop_init) {
            uint _e637 = block;
            block = _e637 + 64u;
        }
        loop_init = false;
        uint _e91 = block;
        if (_e91 <= position) {
        } else {
            break;
        }
        {
            uint _e93 = block;
            uint mine = _e93 + (lid >> 2u);
            score = 0.0;
            if (mine <= position) {
                uint _e102 = p.key_value_heads;
                uint _e107 = p.dim;
                uint at = ((mine * _e102) + pair_head) * _e107;
                d = (lid & 3u) * 8u;
                bool loop_init_1 = true;
                while(true) {
                    if (!loop_init_1) {
                        uint _e200 = d;
                        d = _e200 + 32u;
                    }
                    loop_init_1 = false;
                    uint _e114 = d;
                    uint _e117 = p.dim;
                    if (_e114 < _e117) {
                    } else {
                        break;
                    }
                    {
                        uint _e120 = d;
                        metal::uint4 eight = keys[(at + _e120) >> 3u];
                        metal::float2 a = float2(as_type<half2>(eight.x));
                        metal::float2 b = float2(as_type<half2>(eight.y));
                        metal::float2 c = float2(as_type<half2>(eight.z));
                        metal::float2 e = float2(as_type<half2>(eight.w));
                        uint _e135 = d;
                        float _e139 = q.inner[_e135 + 1u];
                        uint _e142 = d;
                        float _e144 = q.inner[_e142];
                        float _e146 = score;
                        score = metal::fma(_e139, a.y, metal::fma(_e144, a.x, _e146));
                        uint _e150 = d;
                        float _e154 = q.inner[_e150 + 3u];
                        uint _e157 = d;
                        float _e161 = q.inner[_e157 + 2u];
                        float _e163 = score;
                        score = metal::fma(_e154, b.y, metal::fma(_e161, b.x, _e163));
                        uint _e167 = d;
                        float _e171 = q.inner[_e167 + 5u];
                        uint _e174 = d;
                        float _e178 = q.inner[_e174 + 4u];
                        float _e180 = score;
                        score = metal::fma(_e171, c.y, metal::fma(_e178, c.x, _e180));
                        uint _e184 = d;
                        float _e188 = q.inner[_e184 + 7u];
                        uint _e191 = d;
                        float _e195 = q.inner[_e191 + 6u];
                        float _e197 = score;
                        score = metal::fma(_e188, e.y, metal::fma(_e195, e.x, _e197));
                    }
                }
            }
            float _e205 = score;
            red.inner[lid] = _e205;
            metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
            uint same = lid & 252u;
            float _e210 = red.inner[same];
            float _e215 = red.inner[same + 1u];
            float _e221 = red.inner[same + 2u];
            float _e226 = red.inner[same + 3u];
            score = (_e210 + _e215) + (_e221 + _e226);
            if (!((mine > position))) {
                local = mine < seen;
            } else {
                local = true;
            }
            bool _e235 = local;
            if (_e235) {
                score = -300000000000000000000000000000000000000.0;
            }
            if ((lid & 3u) == 0u) {
                float _e250 = score;
                scores.inner[lid >> 4u][(lid >> 2u) & 3u] = _e250;
            }
            metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
            metal::float4 _e253 = scores.inner[0];
            best = _e253;
            fourth = 1u;
            bool loop_init_2 = true;
            while(true) {
                if (!loop_init_2) {
                    uint _e266 = fourth;
                    fourth = _e266 + 1u;
                }
                loop_init_2 = false;
                uint _e257 = fourth;
                if (_e257 < 16u) {
                } else {
                    break;
                }
                {
                    metal::float4 _e260 = best;
                    uint _e262 = fourth;
                    metal::float4 _e264 = scores.inner[_e262];
                    best = metal::max(_e260, _e264);
                }
            }
            float _e270 = best.x;
            float _e272 = best.y;
            float _e275 = best.z;
            float _e277 = best.w;
            float most = metal::max(metal::max(_e270, _e272), metal::max(_e275, _e277));
            if ((lid & 3u) == 0u) {
                float _e293 = score;
                if (!((mine > position))) {
                    local_1 = mine < seen;
                } else {
                    local_1 = true;
                }
                bool _e302 = local_1;
                weights.inner[lid >> 4u][(lid >> 2u) & 3u] = _e302 ? 0.0 : metal::exp(_e293 - most);
            }
            metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
            metal::float4 _e307 = weights.inner[0];
            four = _e307;
            fourth_1 = 1u;
            bool loop_init_3 = true;
            while(true) {
                if (!loop_init_3) {
                    uint _e320 = fourth_1;
                    fourth_1 = _e320 + 1u;
                }
                loop_init_3 = false;
                uint _e311 = fourth_1;
                if (_e311 < 16u) {
                } else {
                    break;
                }
                {
                    metal::float4 _e314 = four;
                    uint _e316 = fourth_1;
                    metal::float4 _e318 = weights.inner[_e316];
                    four = _e314 + _e318;
                }
            }
            float _e324 = four.x;
            float _e326 = four.y;
            float _e329 = four.z;
            float _e331 = four.w;
            float weight = (_e324 + _e326) + (_e329 + _e331);
            near = 0.0;
            far = 0.0;
            if (part < parts) {
                uint _e340 = block;
                uint count = metal::min(64u, (position - _e340) + 1u);
                j = part;
                bool loop_init_4 = true;
                while(true) {
                    if (!loop_init_4) {
                        uint _e571 = j;
                        j = _e571 + (4u * parts);
                    }
                    loop_init_4 = false;
                    uint _e346 = j;
                    if ((_e346 + (3u * parts)) < count) {
                    } else {
                        break;
                    }
                    {
                        {
                            uint _e352 = block;
                            uint _e353 = j;
                            uint _e360 = p.key_value_heads;
                            uint _e366 = values[(((((_e352 + _e353) + (0u * parts)) * _e360) + pair_head) * words) + word];
                            metal::float2 pair = float2(as_type<half2>(_e366));
                            uint _e369 = j;
                            uint _e376 = j;
                            float _e383 = weights.inner[(_e369 + (0u * parts)) >> 2u][(_e376 + (0u * parts)) & 3u];
                            float _e385 = near;
                            near = metal::fma(_e383, pair.x, _e385);
                            uint _e388 = j;
                            uint _e395 = j;
                            float _e402 = weights.inner[(_e388 + (0u * parts)) >> 2u][(_e395 + (0u * parts)) & 3u];
                            float _e404 = far;
                            far = metal::fma(_e402, pair.y, _e404);
                        }
                        {
                            uint _e407 = block;
                            uint _e408 = j;
                            uint _e415 = p.key_value_heads;
                            uint _e421 = values[(((((_e407 + _e408) + (1u * parts)) * _e415) + pair_head) * words) + word];
                            metal::float2 pair_1 = float2(as_type<half2>(_e421));
                            uint _e424 = j;
                            uint _e431 = j;
                            float _e438 = weights.inner[(_e424 + (1u * parts)) >> 2u][(_e431 + (1u * parts)) & 3u];
                            float _e440 = near;
                            near = metal::fma(_e438, pair_1.x, _e440);
                            uint _e443 = j;
                            uint _e450 = j;
                            float _e457 = weights.inner[(_e443 + (1u * parts)) >> 2u][(_e450 + (1u * parts)) & 3u];
                            float _e459 = far;
                            far = metal::fma(_e457, pair_1.y, _e459);
                        }
                        {
                            uint _e462 = block;
                            uint _e463 = j;
                            uint _e470 = p.key_value_heads;
                            uint _e476 = values[(((((_e462 + _e463) + (2u * parts)) * _e470) + pair_head) * words) + word];
                            metal::float2 pair_2 = float2(as_type<half2>(_e476));
                            uint _e479 = j;
                            uint _e486 = j;
                            float _e493 = weights.inner[(_e479 + (2u * parts)) >> 2u][(_e486 + (2u * parts)) & 3u];
                            float _e495 = near;
                            near = metal::fma(_e493, pair_2.x, _e495);
                            uint _e498 = j;
                            uint _e505 = j;
                            float _e512 = weights.inner[(_e498 + (2u * parts)) >> 2u][(_e505 + (2u * parts)) & 3u];
                            float _e514 = far;
                            far = metal::fma(_e512, pair_2.y, _e514);
                        }
                        {
                            uint _e517 = block;
                            uint _e518 = j;
                            uint _e525 = p.key_value_heads;
                            uint _e531 = values[(((((_e517 + _e518) + (3u * parts)) * _e525) + pair_head) * words) + word];
                            metal::float2 pair_3 = float2(as_type<half2>(_e531));
                            uint _e534 = j;
                            uint _e541 = j;
                            float _e548 = weights.inner[(_e534 + (3u * parts)) >> 2u][(_e541 + (3u * parts)) & 3u];
                            float _e550 = near;
                            near = metal::fma(_e548, pair_3.x, _e550);
                            uint _e553 = j;
                            uint _e560 = j;
                            float _e567 = weights.inner[(_e553 + (3u * parts)) >> 2u][(_e560 + (3u * parts)) & 3u];
                            float _e569 = far;
                            far = metal::fma(_e567, pair_3.y, _e569);
                        }
                    }
                }
                bool loop_init_5 = true;
                while(true) {
                    if (!loop_init_5) {
                        uint _e617 = j;
                        j = _e617 + parts;
                    }
                    loop_init_5 = false;
                    uint _e575 = j;
                    if (_e575 < count) {
                    } else {
                        break;
                    }
                    {
                        {
                            uint _e578 = block;
                            uint _e579 = j;
                            uint _e583 = p.key_value_heads;
                            uint _e589 = values[((((_e578 + _e579) * _e583) + pair_head) * words) + word];
                            metal::float2 pair_4 = float2(as_type<half2>(_e589));
                            uint _e592 = j;
                            uint _e596 = j;
                            float _e600 = weights.inner[_e592 >> 2u][_e596 & 3u];
                            float _e602 = near;
                            near = metal::fma(_e600, pair_4.x, _e602);
                            uint _e605 = j;
                            uint _e609 = j;
                            float _e613 = weights.inner[_e605 >> 2u][_e609 & 3u];
                            float _e615 = far;
                            far = metal::fma(_e613, pair_4.y, _e615);
                        }
                    }
                }
            }
            float _e619 = greatest;
            float now = metal::max(_e619, most);
            float _e621 = greatest;
            float keep = metal::exp(_e621 - now);
            float share = metal::exp(most - now);
            float _e626 = total;
            total = metal::fma(_e626, keep, weight * share);
            float _e629 = sum;
            float _e630 = near;
            sum = metal::fma(_e629, keep, _e630 * share);
            float _e633 = more;
            float _e634 = far;
            more = metal::fma(_e633, keep, _e634 * share);
            greatest = now;
        }
    }
    float sink = sinks[head];
    float _e643 = greatest;
    float raised = metal::max(_e643, sink);
    float _e645 = greatest;
    float kept = metal::exp(_e645 - raised);
    float _e648 = total;
    total = metal::fma(_e648, kept, metal::exp(sink - raised));
    float _e652 = sum;
    sum = _e652 * kept;
    float _e654 = more;
    more = _e654 * kept;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    float _e658 = sum;
    red.inner[lid] = _e658;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if (lid < words) {
        float _e662 = red.inner[lid];
        all = _e662;
        bool loop_init_6 = true;
        while(true) {
            if (!loop_init_6) {
                uint _e676 = other;
                other = _e676 + 1u;
            }
            loop_init_6 = false;
            uint _e666 = other;
            if (_e666 < parts) {
            } else {
                break;
            }
            {
                float _e668 = all;
                uint _e670 = other;
                float _e674 = red.inner[lid + (_e670 * words)];
                all = _e668 + _e674;
            }
        }
        float _e686 = all;
        float _e687 = total;
        y[(at_query + (lid * 2u)) + 0u] = _e686 / _e687;
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    float _e691 = more;
    red.inner[lid] = _e691;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if (lid < words) {
        float _e695 = red.inner[lid];
        all_1 = _e695;
        bool loop_init_7 = true;
        while(true) {
            if (!loop_init_7) {
                uint _e709 = other_1;
                other_1 = _e709 + 1u;
            }
            loop_init_7 = false;
            uint _e699 = other_1;
            if (_e699 < parts) {
            } else {
                break;
            }
            {
                float _e701 = all_1;
                uint _e703 = other_1;
                float _e707 = red.inner[lid + (_e703 * words)];
                all_1 = _e701 + _e707;
            }
        }
        float _e719 = all_1;
        float _e720 = total;
        y[(at_query + (lid * 2u)) + 1u] = _e719 / _e720;
        return;
    } else {
        return;
    }
}
