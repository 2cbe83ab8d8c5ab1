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
    metal::float4 best = {};
    uint fourth = 1u;
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
    uint block = 0u + (wid.y * 64u);
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
    uint mine = block + (lid >> 2u);
    if (mine <= position) {
        uint _e68 = p.key_value_heads;
        uint _e73 = p.dim;
        uint at = ((mine * _e68) + pair_head) * _e73;
        d = (lid & 3u) * 8u;
        bool loop_init = true;
        while(true) {
            if (!loop_init) {
                uint _e166 = d;
                d = _e166 + 32u;
            }
            loop_init = false;
            uint _e80 = d;
            uint _e83 = p.dim;
            if (_e80 < _e83) {
            } else {
                break;
            }
            {
                uint _e86 = d;
                metal::uint4 eight = keys[(at + _e86) >> 3u];
                metal::float2 a = float2(as_type<half2>(eight.x));
                metal::float2 b = float2(as_type<half2>(eight.y));
                metal::float2 c = float2(as_type<half2>(eight.z));
                metal::float2 e = float2(as_type<half2>(eight.w));
                uint _e101 = d;
                float _e105 = q.inner[_e101 + 1u];
                uint _e108 = d;
                float _e110 = q.inner[_e108];
                float _e112 = score;
                score = metal::fma(_e105, a.y, metal::fma(_e110, a.x, _e112));
                uint _e116 = d;
                float _e120 = q.inner[_e116 + 3u];
                uint _e123 = d;
                float _e127 = q.inner[_e123 + 2u];
                float _e129 = score;
                score = metal::fma(_e120, b.y, metal::fma(_e127, b.x, _e129));
                uint _e133 = d;
                float _e137 = q.inner[_e133 + 5u];
                uint _e140 = d;
                float _e144 = q.inner[_e140 + 4u];
                float _e146 = score;
                score = metal::fma(_e137, c.y, metal::fma(_e144, c.x, _e146));
                uint _e150 = d;
                float _e154 = q.inner[_e150 + 7u];
                uint _e157 = d;
                float _e161 = q.inner[_e157 + 6u];
                float _e163 = score;
                score = metal::fma(_e154, e.y, metal::fma(_e161, e.x, _e163));
            }
        }
    }
    float _e171 = score;
    red.inner[lid] = _e171;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    uint same = lid & 252u;
    float _e176 = red.inner[same];
    float _e181 = red.inner[same + 1u];
    float _e187 = red.inner[same + 2u];
    float _e192 = red.inner[same + 3u];
    score = (_e176 + _e181) + (_e187 + _e192);
    if (mine > position) {
        score = -300000000000000000000000000000000000000.0;
    }
    if ((lid & 3u) == 0u) {
        float _e210 = score;
        scores.inner[lid >> 4u][(lid >> 2u) & 3u] = _e210;
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    metal::float4 _e213 = scores.inner[0];
    best = _e213;
    bool loop_init_1 = true;
    while(true) {
        if (!loop_init_1) {
            uint _e226 = fourth;
            fourth = _e226 + 1u;
        }
        loop_init_1 = false;
        uint _e217 = fourth;
        if (_e217 < 16u) {
        } else {
            break;
        }
        {
            metal::float4 _e220 = best;
            uint _e222 = fourth;
            metal::float4 _e224 = scores.inner[_e222];
            best = metal::max(_e220, _e224);
        }
    }
    float _e230 = best.x;
    float _e232 = best.y;
    float _e235 = best.z;
    float _e237 = best.w;
    float most = metal::max(metal::max(_e230, _e232), metal::max(_e235, _e237));
    if ((lid & 3u) == 0u) {
        float _e253 = score;
        weights.inner[lid >> 4u][(lid >> 2u) & 3u] = (mine > position) ? 0.0 : metal::exp(_e253 - most);
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    metal::float4 _e261 = weights.inner[0];
    four = _e261;
    bool loop_init_2 = true;
    while(true) {
        if (!loop_init_2) {
            uint _e274 = fourth_1;
            fourth_1 = _e274 + 1u;
        }
        loop_init_2 = false;
        uint _e265 = fourth_1;
        if (_e265 < 16u) {
        } else {
            break;
        }
        {
            metal::float4 _e268 = four;
            uint _e270 = fourth_1;
            metal::float4 _e272 = weights.inner[_e270];
            four = _e268 + _e272;
        }
    }
    float _e278 = four.x;
    float _e280 = four.y;
    float _e283 = four.z;
    float _e285 = four.w;
    float weight = (_e278 + _e280) + (_e283 + _e285);
    if (part < parts) {
        uint count = metal::min(64u, (position - block) + 1u);
        j = part;
        bool loop_init_3 = true;
        while(true) {
            if (!loop_init_3) {
                uint _e520 = j;
                j = _e520 + (4u * parts);
            }
            loop_init_3 = false;
            uint _e299 = j;
            if ((_e299 + (3u * parts)) < count) {
            } else {
                break;
            }
            {
                {
                    uint _e305 = j;
                    uint _e312 = p.key_value_heads;
                    uint _e318 = values[(((((block + _e305) + (0u * parts)) * _e312) + pair_head) * words) + word];
                    metal::float2 pair = float2(as_type<half2>(_e318));
                    uint _e321 = j;
                    uint _e328 = j;
                    float _e335 = weights.inner[(_e321 + (0u * parts)) >> 2u][(_e328 + (0u * parts)) & 3u];
                    float _e337 = near;
                    near = metal::fma(_e335, pair.x, _e337);
                    uint _e340 = j;
                    uint _e347 = j;
                    float _e354 = weights.inner[(_e340 + (0u * parts)) >> 2u][(_e347 + (0u * parts)) & 3u];
                    float _e356 = far;
                    far = metal::fma(_e354, pair.y, _e356);
                }
                {
                    uint _e359 = j;
                    uint _e366 = p.key_value_heads;
                    uint _e372 = values[(((((block + _e359) + (1u * parts)) * _e366) + pair_head) * words) + word];
                    metal::float2 pair_1 = float2(as_type<half2>(_e372));
                    uint _e375 = j;
                    uint _e382 = j;
                    float _e389 = weights.inner[(_e375 + (1u * parts)) >> 2u][(_e382 + (1u * parts)) & 3u];
                    float _e391 = near;
                    near = metal::fma(_e389, pair_1.x, _e391);
                    uint _e394 = j;
                    uint _e401 = j;
                    float _e408 = weights.inner[(_e394 + (1u * parts)) >> 2u][(_e401 + (1u * parts)) & 3u];
                    float _e410 = far;
                    far = metal::fma(_e408, pair_1.y, _e410);
                }
                {
                    uint _e413 = j;
                    uint _e420 = p.key_value_heads;
                    uint _e426 = values[(((((block + _e413) + (2u * parts)) * _e420) + pair_head) * words) + word];
                    metal::float2 pair_2 = float2(as_type<half2>(_e426));
                    uint _e429 = j;
                    uint _e436 = j;
                    float _e443 = weights.inner[(_e429 + (2u * parts)) >> 2u][(_e436 + (2u * parts)) & 3u];
                    float _e445 = near;
                    near = metal::fma(_e443, pair_2.x, _e445);
                    uint _e448 = j;
                    uint _e455 = j;
                    float _e462 = weights.inner[(_e448 + (2u * parts)) >> 2u][(_e455 + (2u * parts)) & 3u];
                    float _e464 = far;
                    far = metal::fma(_e462, pair_2.y, _e464);
                }
                {
                    uint _e467 = j;
                    uint _e474 = p.key_value_heads;
                    uint _e480 = values[(((((block + _e467) + (3u * parts)) * _e474) + pair_head) * words) + word];
                    metal::float2 pair_3 = float2(as_type<half2>(_e480));
                    uint _e483 = j;
                    uint _e490 = j;
                    float _e497 = weights.inner[(_e483 + (3u * parts)) >> 2u][(_e490 + (3u * parts)) & 3u];
                    float _e499 = near;
                    near = metal::fma(_e497, pair_3.x, _e499);
                    uint _e502 = j;
                    uint _e509 = j;
                    float _e516 = weights.inner[(_e502 + (3u * parts)) >> 2u][(_e509 + (3u * parts)) & 3u];
                    float _e518 = far;
                    far = metal::fma(_e516, pair_3.y, _e518);
                }
            }
        }
        bool loop_init_4 = true;
        while(true) {
            if (!loop_init_4) {
                uint _e565 = j;
                j = _e565 + parts;
            }
            loop_init_4 = false;
            uint _e524 = j;
            if (_e524 < count) {
            } else {
                break;
            }
            {
                {
                    uint _e527 = j;
                    uint _e531 = p.key_value_heads;
                    uint _e537 = values[((((block + _e527) * _e531) + pair_head) * words) + word];
                    metal::float2 pair_4 = float2(as_type<half2>(_e537));
                    uint _e540 = j;
                    uint _e544 = j;
                    float _e548 = weights.inner[_e540 >> 2u][_e544 & 3u];
                    float _e550 = near;
                    near = metal::fma(_e548, pair_4.x, _e550);
                    uint _e553 = j;
                    uint _e557 = j;
                    float _e561 = weights.inner[_e553 >> 2u][_e557 & 3u];
                    float _e563 = far;
                    far = metal::fma(_e561, pair_4.y, _e563);
                }
            }
        }
    }
    uint _e570 = p.query_heads;
    uint to = ((wid.y * _e570) + head) * 514u;
    float _e578 = near;
    partial[to + lid] = _e578;
    float _e584 = far;
    partial[(to + 256u) + lid] = _e584;
    if (lid == 0u) {
        partial[to + 512u] = most;
        partial[to + 513u] = weight;
        return;
    } else {
        return;
    }
}
