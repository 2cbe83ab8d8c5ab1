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
, device type_4 const& keys [[buffer(2)]]
, device type_5 const& values [[buffer(3)]]
, device type_1& partial [[buffer(4)]]
, device type_5 const& control [[buffer(5)]]
, constant Parameters& p [[buffer(0)]]
, threadgroup type_6& red
, threadgroup type_6& q
, threadgroup type_8& scores
, threadgroup type_8& weights
, constant _mslBufferSizes& _buffer_sizes [[buffer(6)]]
) {
    float score = 0.0;
    uint d = {};
    bool local = {};
    metal::float4 best = {};
    uint fourth = 1u;
    bool local_1 = {};
    metal::float4 four = {};
    uint fourth_1 = 1u;
    float near = 0.0;
    float far = 0.0;
    uint j = {};
    uint _e4 = control[0];
    if (_e4 != 0u) {
        return;
    }
    uint row = p.first;
    uint position = p.position;
    uint _e17 = p.window;
    uint _e21 = p.window;
    uint seen = metal::max(position + 1u, _e17) - _e21;
    uint last = position / 64u;
    uint _e27 = p.window;
    uint begin = (last - metal::min(last, (_e27 + 63u) / 64u)) * 64u;
    uint block = begin + (wid.y * 64u);
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
    uint mine = block + (lid >> 2u);
    if (mine <= position) {
        uint _e90 = p.key_value_heads;
        uint _e95 = p.dim;
        uint at = ((mine * _e90) + pair_head) * _e95;
        d = (lid & 3u) * 8u;
        bool loop_init = true;
        while(true) {
            if (!loop_init) {
                uint _e188 = d;
                d = _e188 + 32u;
            }
            loop_init = false;
            uint _e102 = d;
            uint _e105 = p.dim;
            if (_e102 < _e105) {
            } else {
                break;
            }
            {
                uint _e108 = d;
                metal::uint4 eight = keys[(at + _e108) >> 3u];
                metal::float2 a = float2(as_type<half2>(eight.x));
                metal::float2 b = float2(as_type<half2>(eight.y));
                metal::float2 c = float2(as_type<half2>(eight.z));
                metal::float2 e = float2(as_type<half2>(eight.w));
                uint _e123 = d;
                float _e127 = q.inner[_e123 + 1u];
                uint _e130 = d;
                float _e132 = q.inner[_e130];
                float _e134 = score;
                score = metal::fma(_e127, a.y, metal::fma(_e132, a.x, _e134));
                uint _e138 = d;
                float _e142 = q.inner[_e138 + 3u];
                uint _e145 = d;
                float _e149 = q.inner[_e145 + 2u];
                float _e151 = score;
                score = metal::fma(_e142, b.y, metal::fma(_e149, b.x, _e151));
                uint _e155 = d;
                float _e159 = q.inner[_e155 + 5u];
                uint _e162 = d;
                float _e166 = q.inner[_e162 + 4u];
                float _e168 = score;
                score = metal::fma(_e159, c.y, metal::fma(_e166, c.x, _e168));
                uint _e172 = d;
                float _e176 = q.inner[_e172 + 7u];
                uint _e179 = d;
                float _e183 = q.inner[_e179 + 6u];
                float _e185 = score;
                score = metal::fma(_e176, e.y, metal::fma(_e183, e.x, _e185));
            }
        }
    }
    float _e193 = score;
    red.inner[lid] = _e193;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    uint same = lid & 252u;
    float _e198 = red.inner[same];
    float _e203 = red.inner[same + 1u];
    float _e209 = red.inner[same + 2u];
    float _e214 = red.inner[same + 3u];
    score = (_e198 + _e203) + (_e209 + _e214);
    if (!((mine > position))) {
        local = mine < seen;
    } else {
        local = true;
    }
    bool _e223 = local;
    if (_e223) {
        score = -300000000000000000000000000000000000000.0;
    }
    if ((lid & 3u) == 0u) {
        float _e238 = score;
        scores.inner[lid >> 4u][(lid >> 2u) & 3u] = _e238;
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    metal::float4 _e241 = scores.inner[0];
    best = _e241;
    bool loop_init_1 = true;
    while(true) {
        if (!loop_init_1) {
            uint _e254 = fourth;
            fourth = _e254 + 1u;
        }
        loop_init_1 = false;
        uint _e245 = fourth;
        if (_e245 < 16u) {
        } else {
            break;
        }
        {
            metal::float4 _e248 = best;
            uint _e250 = fourth;
            metal::float4 _e252 = scores.inner[_e250];
            best = metal::max(_e248, _e252);
        }
    }
    float _e258 = best.x;
    float _e260 = best.y;
    float _e263 = best.z;
    float _e265 = best.w;
    float most = metal::max(metal::max(_e258, _e260), metal::max(_e263, _e265));
    if ((lid & 3u) == 0u) {
        float _e281 = score;
        if (!((mine > position))) {
            local_1 = mine < seen;
        } else {
            local_1 = true;
        }
        bool _e290 = local_1;
        weights.inner[lid >> 4u][(lid >> 2u) & 3u] = _e290 ? 0.0 : metal::exp(_e281 - most);
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    metal::float4 _e295 = weights.inner[0];
    four = _e295;
    bool loop_init_2 = true;
    while(true) {
        if (!loop_init_2) {
            uint _e308 = fourth_1;
            fourth_1 = _e308 + 1u;
        }
        loop_init_2 = false;
        uint _e299 = fourth_1;
        if (_e299 < 16u) {
        } else {
            break;
        }
        {
            metal::float4 _e302 = four;
            uint _e304 = fourth_1;
            metal::float4 _e306 = weights.inner[_e304];
            four = _e302 + _e306;
        }
    }
    float _e312 = four.x;
    float _e314 = four.y;
    float _e317 = four.z;
    float _e319 = four.w;
    float weight = (_e312 + _e314) + (_e317 + _e319);
    if (part < parts) {
        uint count = metal::min(64u, (position - block) + 1u);
        j = part;
        bool loop_init_3 = true;
        while(true) {
            if (!loop_init_3) {
                uint _e554 = j;
                j = _e554 + (4u * parts);
            }
            loop_init_3 = false;
            uint _e333 = j;
            if ((_e333 + (3u * parts)) < count) {
            } else {
                break;
            }
            {
                {
                    uint _e339 = j;
                    uint _e346 = p.key_value_heads;
                    uint _e352 = values[(((((block + _e339) + (0u * parts)) * _e346) + pair_head) * words) + word];
                    metal::float2 pair = float2(as_type<half2>(_e352));
                    uint _e355 = j;
                    uint _e362 = j;
                    float _e369 = weights.inner[(_e355 + (0u * parts)) >> 2u][(_e362 + (0u * parts)) & 3u];
                    float _e371 = near;
                    near = metal::fma(_e369, pair.x, _e371);
                    uint _e374 = j;
                    uint _e381 = j;
                    float _e388 = weights.inner[(_e374 + (0u * parts)) >> 2u][(_e381 + (0u * parts)) & 3u];
                    float _e390 = far;
                    far = metal::fma(_e388, pair.y, _e390);
                }
                {
                    uint _e393 = j;
                    uint _e400 = p.key_value_heads;
                    uint _e406 = values[(((((block + _e393) + (1u * parts)) * _e400) + pair_head) * words) + word];
                    metal::float2 pair_1 = float2(as_type<half2>(_e406));
                    uint _e409 = j;
                    uint _e416 = j;
                    float _e423 = weights.inner[(_e409 + (1u * parts)) >> 2u][(_e416 + (1u * parts)) & 3u];
                    float _e425 = near;
                    near = metal::fma(_e423, pair_1.x, _e425);
                    uint _e428 = j;
                    uint _e435 = j;
                    float _e442 = weights.inner[(_e428 + (1u * parts)) >> 2u][(_e435 + (1u * parts)) & 3u];
                    float _e444 = far;
                    far = metal::fma(_e442, pair_1.y, _e444);
                }
                {
                    uint _e447 = j;
                    uint _e454 = p.key_value_heads;
                    uint _e460 = values[(((((block + _e447) + (2u * parts)) * _e454) + pair_head) * words) + word];
                    metal::float2 pair_2 = float2(as_type<half2>(_e460));
                    uint _e463 = j;
                    uint _e470 = j;
                    float _e477 = weights.inner[(_e463 + (2u * parts)) >> 2u][(_e470 + (2u * parts)) & 3u];
                    float _e479 = near;
                    near = metal::fma(_e477, pair_2.x, _e479);
                    uint _e482 = j;
                    uint _e489 = j;
                    float _e496 = weights.inner[(_e482 + (2u * parts)) >> 2u][(_e489 + (2u * parts)) & 3u];
                    float _e498 = far;
                    far = metal::fma(_e496, pair_2.y, _e498);
                }
                {
                    uint _e501 = j;
                    uint _e508 = p.key_value_heads;
                    uint _e514 = values[(((((block + _e501) + (3u * parts)) * _e508) + pair_head) * words) + word];
                    metal::float2 pair_3 = float2(as_type<half2>(_e514));
                    uint _e517 = j;
                    uint _e524 = j;
                    float _e531 = weights.inner[(_e517 + (3u * parts)) >> 2u][(_e524 + (3u * parts)) & 3u];
                    float _e533 = near;
                    near = metal::fma(_e531, pair_3.x, _e533);
                    uint _e536 = j;
                    uint _e543 = j;
                    float _e550 = weights.inner[(_e536 + (3u * parts)) >> 2u][(_e543 + (3u * parts)) & 3u];
                    float _e552 = far;
                    far = metal::fma(_e550, pair_3.y, _e552);
                }
            }
        }
        bool loop_init_4 = true;
        while(true) {
            if (!loop_init_4) {
                uint _e599 = j;
                j = _e599 + parts;
            }
            loop_init_4 = false;
            uint _e558 = j;
            if (_e558 < count) {
            } else {
                break;
            }
            {
                {
                    uint _e561 = j;
                    uint _e565 = p.key_value_heads;
                    uint _e571 = values[((((block + _e561) * _e565) + pair_head) * words) + word];
                    metal::float2 pair_4 = float2(as_type<half2>(_e571));
                    uint _e574 = j;
                    uint _e578 = j;
                    float _e582 = weights.inner[_e574 >> 2u][_e578 & 3u];
                    float _e584 = near;
                    near = metal::fma(_e582, pair_4.x, _e584);
                    uint _e587 = j;
                    uint _e591 = j;
                    float _e595 = weights.inner[_e587 >> 2u][_e591 & 3u];
                    float _e597 = far;
                    far = metal::fma(_e595, pair_4.y, _e597);
                }
            }
        }
    }
    uint _e604 = p.query_heads;
    uint to = ((wid.y * _e604) + head) * 514u;
    float _e612 = near;
    partial[to + lid] = _e612;
    float _e618 = far;
    partial[(to + 256u) + lid] = _e618;
    if (lid == 0u) {
        partial[to + 512u] = most;
        partial[to + 513u] = weight;
        return;
    } else {
        return;
    }
}
