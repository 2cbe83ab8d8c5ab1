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
    uint block = wid.y * 64u;
    uint head = wid.x;
    uint _e19 = p.query_heads;
    uint _e22 = p.key_value_heads;
    uint pair_head = head / (_e19 / _e22);
    uint _e27 = p.query_heads;
    uint _e32 = p.dim;
    uint at_query = ((row * _e27) + head) * _e32;
    uint _e36 = p.dim;
    if (lid < _e36) {
        float _e43 = query[at_query + lid];
        uint _e46 = p.scale;
        q.inner[lid] = _e43 * as_type<float>(_e46);
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    uint _e51 = p.dim;
    uint words = _e51 / 2u;
    uint parts = 256u / words;
    uint word = lid % words;
    uint part = lid / words;
    uint mine = block + (lid >> 2u);
    if (mine <= position) {
        uint _e66 = p.key_value_heads;
        uint _e71 = p.dim;
        uint at = ((mine * _e66) + pair_head) * _e71;
        d = (lid & 3u) * 8u;
        bool loop_init = true;
        while(true) {
            if (!loop_init) {
                uint _e164 = d;
                d = _e164 + 32u;
            }
            loop_init = false;
            uint _e78 = d;
            uint _e81 = p.dim;
            if (_e78 < _e81) {
            } else {
                break;
            }
            {
                uint _e84 = d;
                metal::uint4 eight = keys[(at + _e84) >> 3u];
                metal::float2 a = float2(as_type<half2>(eight.x));
                metal::float2 b = float2(as_type<half2>(eight.y));
                metal::float2 c = float2(as_type<half2>(eight.z));
                metal::float2 e = float2(as_type<half2>(eight.w));
                uint _e99 = d;
                float _e103 = q.inner[_e99 + 1u];
                uint _e106 = d;
                float _e108 = q.inner[_e106];
                float _e110 = score;
                score = metal::fma(_e103, a.y, metal::fma(_e108, a.x, _e110));
                uint _e114 = d;
                float _e118 = q.inner[_e114 + 3u];
                uint _e121 = d;
                float _e125 = q.inner[_e121 + 2u];
                float _e127 = score;
                score = metal::fma(_e118, b.y, metal::fma(_e125, b.x, _e127));
                uint _e131 = d;
                float _e135 = q.inner[_e131 + 5u];
                uint _e138 = d;
                float _e142 = q.inner[_e138 + 4u];
                float _e144 = score;
                score = metal::fma(_e135, c.y, metal::fma(_e142, c.x, _e144));
                uint _e148 = d;
                float _e152 = q.inner[_e148 + 7u];
                uint _e155 = d;
                float _e159 = q.inner[_e155 + 6u];
                float _e161 = score;
                score = metal::fma(_e152, e.y, metal::fma(_e159, e.x, _e161));
            }
        }
    }
    float _e169 = score;
    red.inner[lid] = _e169;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    uint same = lid & 252u;
    float _e174 = red.inner[same];
    float _e179 = red.inner[same + 1u];
    float _e185 = red.inner[same + 2u];
    float _e190 = red.inner[same + 3u];
    score = (_e174 + _e179) + (_e185 + _e190);
    if (mine > position) {
        score = -300000000000000000000000000000000000000.0;
    }
    if ((lid & 3u) == 0u) {
        float _e208 = score;
        scores.inner[lid >> 4u][(lid >> 2u) & 3u] = _e208;
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    metal::float4 _e211 = scores.inner[0];
    best = _e211;
    bool loop_init_1 = true;
    while(true) {
        if (!loop_init_1) {
            uint _e224 = fourth;
            fourth = _e224 + 1u;
        }
        loop_init_1 = false;
        uint _e215 = fourth;
        if (_e215 < 16u) {
        } else {
            break;
        }
        {
            metal::float4 _e218 = best;
            uint _e220 = fourth;
            metal::float4 _e222 = scores.inner[_e220];
            best = metal::max(_e218, _e222);
        }
    }
    float _e228 = best.x;
    float _e230 = best.y;
    float _e233 = best.z;
    float _e235 = best.w;
    float most = metal::max(metal::max(_e228, _e230), metal::max(_e233, _e235));
    if ((lid & 3u) == 0u) {
        float _e251 = score;
        weights.inner[lid >> 4u][(lid >> 2u) & 3u] = (mine > position) ? 0.0 : metal::exp(_e251 - most);
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    metal::float4 _e259 = weights.inner[0];
    four = _e259;
    bool loop_init_2 = true;
    while(true) {
        if (!loop_init_2) {
            uint _e272 = fourth_1;
            fourth_1 = _e272 + 1u;
        }
        loop_init_2 = false;
        uint _e263 = fourth_1;
        if (_e263 < 16u) {
        } else {
            break;
        }
        {
            metal::float4 _e266 = four;
            uint _e268 = fourth_1;
            metal::float4 _e270 = weights.inner[_e268];
            four = _e266 + _e270;
        }
    }
    float _e276 = four.x;
    float _e278 = four.y;
    float _e281 = four.z;
    float _e283 = four.w;
    float weight = (_e276 + _e278) + (_e281 + _e283);
    if (part < parts) {
        uint count = metal::min(64u, (position - block) + 1u);
        j = part;
        bool loop_init_3 = true;
        while(true) {
            if (!loop_init_3) {
                uint _e518 = j;
                j = _e518 + (4u * parts);
            }
            loop_init_3 = false;
            uint _e297 = j;
            if ((_e297 + (3u * parts)) < count) {
            } else {
                break;
            }
            {
                {
                    uint _e303 = j;
                    uint _e310 = p.key_value_heads;
                    uint _e316 = values[(((((block + _e303) + (0u * parts)) * _e310) + pair_head) * words) + word];
                    metal::float2 pair = float2(as_type<half2>(_e316));
                    uint _e319 = j;
                    uint _e326 = j;
                    float _e333 = weights.inner[(_e319 + (0u * parts)) >> 2u][(_e326 + (0u * parts)) & 3u];
                    float _e335 = near;
                    near = metal::fma(_e333, pair.x, _e335);
                    uint _e338 = j;
                    uint _e345 = j;
                    float _e352 = weights.inner[(_e338 + (0u * parts)) >> 2u][(_e345 + (0u * parts)) & 3u];
                    float _e354 = far;
                    far = metal::fma(_e352, pair.y, _e354);
                }
                {
                    uint _e357 = j;
                    uint _e364 = p.key_value_heads;
                    uint _e370 = values[(((((block + _e357) + (1u * parts)) * _e364) + pair_head) * words) + word];
                    metal::float2 pair_1 = float2(as_type<half2>(_e370));
                    uint _e373 = j;
                    uint _e380 = j;
                    float _e387 = weights.inner[(_e373 + (1u * parts)) >> 2u][(_e380 + (1u * parts)) & 3u];
                    float _e389 = near;
                    near = metal::fma(_e387, pair_1.x, _e389);
                    uint _e392 = j;
                    uint _e399 = j;
                    float _e406 = weights.inner[(_e392 + (1u * parts)) >> 2u][(_e399 + (1u * parts)) & 3u];
                    float _e408 = far;
                    far = metal::fma(_e406, pair_1.y, _e408);
                }
                {
                    uint _e411 = j;
                    uint _e418 = p.key_value_heads;
                    uint _e424 = values[(((((block + _e411) + (2u * parts)) * _e418) + pair_head) * words) + word];
                    metal::float2 pair_2 = float2(as_type<half2>(_e424));
                    uint _e427 = j;
                    uint _e434 = j;
                    float _e441 = weights.inner[(_e427 + (2u * parts)) >> 2u][(_e434 + (2u * parts)) & 3u];
                    float _e443 = near;
                    near = metal::fma(_e441, pair_2.x, _e443);
                    uint _e446 = j;
                    uint _e453 = j;
                    float _e460 = weights.inner[(_e446 + (2u * parts)) >> 2u][(_e453 + (2u * parts)) & 3u];
                    float _e462 = far;
                    far = metal::fma(_e460, pair_2.y, _e462);
                }
                {
                    uint _e465 = j;
                    uint _e472 = p.key_value_heads;
                    uint _e478 = values[(((((block + _e465) + (3u * parts)) * _e472) + pair_head) * words) + word];
                    metal::float2 pair_3 = float2(as_type<half2>(_e478));
                    uint _e481 = j;
                    uint _e488 = j;
                    float _e495 = weights.inner[(_e481 + (3u * parts)) >> 2u][(_e488 + (3u * parts)) & 3u];
                    float _e497 = near;
                    near = metal::fma(_e495, pair_3.x, _e497);
                    uint _e500 = j;
                    uint _e507 = j;
                    float _e514 = weights.inner[(_e500 + (3u * parts)) >> 2u][(_e507 + (3u * parts)) & 3u];
                    float _e516 = far;
                    far = metal::fma(_e514, pair_3.y, _e516);
                }
            }
        }
        bool loop_init_4 = true;
        while(true) {
            if (!loop_init_4) {
                uint _e563 = j;
                j = _e563 + parts;
            }
            loop_init_4 = false;
            uint _e522 = j;
            if (_e522 < count) {
            } else {
                break;
            }
            {
                {
                    uint _e525 = j;
                    uint _e529 = p.key_value_heads;
                    uint _e535 = values[((((block + _e525) * _e529) + pair_head) * words) + word];
                    metal::float2 pair_4 = float2(as_type<half2>(_e535));
                    uint _e538 = j;
                    uint _e542 = j;
                    float _e546 = weights.inner[_e538 >> 2u][_e542 & 3u];
                    float _e548 = near;
                    near = metal::fma(_e546, pair_4.x, _e548);
                    uint _e551 = j;
                    uint _e555 = j;
                    float _e559 = weights.inner[_e551 >> 2u][_e555 & 3u];
                    float _e561 = far;
                    far = metal::fma(_e559, pair_4.y, _e561);
                }
            }
        }
    }
    uint _e568 = p.query_heads;
    uint to = ((wid.y * _e568) + head) * 514u;
    float _e576 = near;
    partial[to + lid] = _e576;
    float _e582 = far;
    partial[(to + 256u) + lid] = _e582;
    if (lid == 0u) {
        partial[to + 512u] = most;
        partial[to + 513u] = weight;
        return;
    } else {
        return;
    }
}
