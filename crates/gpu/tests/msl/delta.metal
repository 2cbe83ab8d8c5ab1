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
};

typedef metal::float4 type_2[1];
typedef float type_3[1];
typedef uint type_5[1];
struct Parameters {
    uint key_heads;
    uint value_heads;
    uint value_dim;
    uint tiled;
    uint first;
    uint tokens;
};
struct type_6 {
    metal::float4 inner[512];
};

struct main_Input {
};
[[max_total_threads_per_threadgroup(256)]] kernel void main_(
  uint lid [[thread_index_in_threadgroup]]
, metal::uint3 wid [[threadgroup_position_in_grid]]
, device type_2 const& x [[buffer(1)]]
, device type_3 const& beta [[buffer(2)]]
, device type_3 const& decay [[buffer(3)]]
, device type_3 const& rate [[buffer(4)]]
, device type_3 const& bias [[buffer(5)]]
, device type_3& state [[buffer(6)]]
, device type_3& y [[buffer(7)]]
, device type_5 const& control [[buffer(8)]]
, constant Parameters& p [[buffer(0)]]
, threadgroup type_6& partial
, constant _mslBufferSizes& _buffer_sizes [[buffer(9)]]
) {
    uint key_head = {};
    float s0_ = 0.0;
    bool local = {};
    float s1_ = 0.0;
    bool local_1 = {};
    float s2_ = 0.0;
    bool local_2 = {};
    float s3_ = 0.0;
    bool local_3 = {};
    metal::float4 now = metal::float4(0.0);
    float q0_ = 0.0;
    float k0_ = 0.0;
    float q1_ = 0.0;
    float k1_ = 0.0;
    float q2_ = 0.0;
    float k2_ = 0.0;
    float q3_ = 0.0;
    float k3_ = 0.0;
    uint t = 0u;
    float u = {};
    float w = {};
    float qk = {};
    metal::float4 all = {};
    uint other = {};
    bool local_4 = {};
    bool local_5 = {};
    bool local_6 = {};
    bool local_7 = {};
    uint _e4 = control[0];
    if (_e4 != 0u) {
        return;
    }
    uint head = wid.x;
    uint _e10 = p.value_heads;
    uint _e13 = p.key_heads;
    key_head = head / (_e10 / _e13);
    uint _e19 = p.tiled;
    if (_e19 != 0u) {
        uint _e24 = p.key_heads;
        key_head = head % _e24;
    }
    uint local_8 = lid & 31u;
    uint eighth = lid >> 5u;
    uint column = (wid.y * 32u) + local_8;
    uint _e36 = p.value_dim;
    bool inside = column < _e36;
    uint low = eighth * 4u;
    uint _e43 = p.key_heads;
    uint _e49 = p.value_heads;
    uint _e52 = p.value_dim;
    uint channels = ((2u * _e43) * 32u) + (_e49 * _e52);
    uint _e60 = p.value_dim;
    uint at_state = (((head * 32u) + low) * _e60) + column;
    if (inside) {
        local = (low + 0u) < 32u;
    } else {
        local = false;
    }
    bool _e72 = local;
    if (_e72) {
        uint _e77 = p.value_dim;
        float _e81 = state[at_state + (0u * _e77)];
        s0_ = _e81;
    }
    if (inside) {
        local_1 = (low + 1u) < 32u;
    } else {
        local_1 = false;
    }
    bool _e91 = local_1;
    if (_e91) {
        uint _e96 = p.value_dim;
        float _e100 = state[at_state + (1u * _e96)];
        s1_ = _e100;
    }
    if (inside) {
        local_2 = (low + 2u) < 32u;
    } else {
        local_2 = false;
    }
    bool _e110 = local_2;
    if (_e110) {
        uint _e115 = p.value_dim;
        float _e119 = state[at_state + (2u * _e115)];
        s2_ = _e119;
    }
    if (inside) {
        local_3 = (low + 3u) < 32u;
    } else {
        local_3 = false;
    }
    bool _e129 = local_3;
    if (_e129) {
        uint _e134 = p.value_dim;
        float _e138 = state[at_state + (3u * _e134)];
        s3_ = _e138;
    }
    float own_rate = rate[head];
    float own_bias = bias[head];
    {
        uint row = p.first;
        uint _e168 = key_head;
        uint at_query = ((row * channels) + (_e168 * 32u)) + low;
        uint _e175 = p.key_heads;
        uint at_key = at_query + (_e175 * 32u);
        uint _e183 = p.key_heads;
        uint _e190 = p.value_dim;
        uint at_value = (((row * channels) + ((2u * _e183) * 32u)) + (head * _e190)) + column;
        uint _e197 = p.value_heads;
        float _e201 = decay[(row * _e197) + head];
        uint _e205 = p.value_heads;
        float _e209 = beta[(row * _e205) + head];
        now = metal::float4(_e201, _e209, 0.0, 0.0);
        if (inside) {
            float _e221 = x[at_value >> 2u][at_value & 3u];
            now.z = _e221;
        }
        metal::float4 query0_ = x[(at_query >> 2u) + 0u];
        metal::float4 key0_ = x[(at_key >> 2u) + 0u];
        q0_ = query0_.x;
        k0_ = key0_.x;
        q1_ = query0_.y;
        k1_ = key0_.y;
        q2_ = query0_.z;
        k2_ = key0_.z;
        q3_ = query0_.w;
        k3_ = key0_.w;
    }
    bool loop_init = true;
    while(true) {
        if (!loop_init) {
            uint _e503 = t;
            t = _e503 + 1u;
        }
        loop_init = false;
        uint _e246 = t;
        uint _e249 = p.tokens;
        if (_e246 < _e249) {
        } else {
            break;
        }
        {
            uint _e253 = p.first;
            uint _e254 = t;
            uint row_1 = _e253 + _e254;
            float _e257 = now.x;
            float a = _e257 + own_bias;
            float softplus = metal::max(a, 0.0) + metal::log(1.0 + metal::exp(-(metal::abs(a))));
            float g = metal::exp(-((own_rate * softplus)));
            float _e272 = now.y;
            float strength = 1.0 / (1.0 + metal::exp(-(_e272)));
            float v = now.z;
            u = 0.0;
            w = 0.0;
            qk = 0.0;
            float kept0_ = k0_;
            float _e288 = s0_;
            float _e289 = k0_;
            float _e290 = u;
            u = metal::fma(_e288, _e289, _e290);
            float _e292 = s0_;
            float _e293 = q0_;
            float _e294 = w;
            w = metal::fma(_e292, _e293, _e294);
            float _e296 = q0_;
            float _e297 = k0_;
            float _e298 = qk;
            qk = metal::fma(_e296, _e297, _e298);
            float kept1_ = k1_;
            float _e301 = s1_;
            float _e302 = k1_;
            float _e303 = u;
            u = metal::fma(_e301, _e302, _e303);
            float _e305 = s1_;
            float _e306 = q1_;
            float _e307 = w;
            w = metal::fma(_e305, _e306, _e307);
            float _e309 = q1_;
            float _e310 = k1_;
            float _e311 = qk;
            qk = metal::fma(_e309, _e310, _e311);
            float kept2_ = k2_;
            float _e314 = s2_;
            float _e315 = k2_;
            float _e316 = u;
            u = metal::fma(_e314, _e315, _e316);
            float _e318 = s2_;
            float _e319 = q2_;
            float _e320 = w;
            w = metal::fma(_e318, _e319, _e320);
            float _e322 = q2_;
            float _e323 = k2_;
            float _e324 = qk;
            qk = metal::fma(_e322, _e323, _e324);
            float kept3_ = k3_;
            float _e327 = s3_;
            float _e328 = k3_;
            float _e329 = u;
            u = metal::fma(_e327, _e328, _e329);
            float _e331 = s3_;
            float _e332 = q3_;
            float _e333 = w;
            w = metal::fma(_e331, _e332, _e333);
            float _e335 = q3_;
            float _e336 = k3_;
            float _e337 = qk;
            qk = metal::fma(_e335, _e336, _e337);
            uint _e339 = t;
            uint _e344 = p.tokens;
            if ((_e339 + 1u) < _e344) {
                uint _e348 = p.first;
                uint _e349 = t;
                uint row_2 = (_e348 + _e349) + 1u;
                uint _e354 = key_head;
                uint at_query_1 = ((row_2 * channels) + (_e354 * 32u)) + low;
                uint _e361 = p.key_heads;
                uint at_key_1 = at_query_1 + (_e361 * 32u);
                uint _e369 = p.key_heads;
                uint _e376 = p.value_dim;
                uint at_value_1 = (((row_2 * channels) + ((2u * _e369) * 32u)) + (head * _e376)) + column;
                uint _e383 = p.value_heads;
                float _e387 = decay[(row_2 * _e383) + head];
                uint _e391 = p.value_heads;
                float _e395 = beta[(row_2 * _e391) + head];
                now = metal::float4(_e387, _e395, 0.0, 0.0);
                if (inside) {
                    float _e407 = x[at_value_1 >> 2u][at_value_1 & 3u];
                    now.z = _e407;
                }
                metal::float4 query0_1 = x[(at_query_1 >> 2u) + 0u];
                metal::float4 key0_1 = x[(at_key_1 >> 2u) + 0u];
                q0_ = query0_1.x;
                k0_ = key0_1.x;
                q1_ = query0_1.y;
                k1_ = key0_1.y;
                q2_ = query0_1.z;
                k2_ = key0_1.z;
                q3_ = query0_1.w;
                k3_ = key0_1.w;
            }
            uint _e430 = t;
            uint half_ = (_e430 & 1u) * 256u;
            float _e438 = u;
            float _e439 = w;
            float _e440 = qk;
            partial.inner[half_ + lid] = metal::float4(_e438, _e439, _e440, 0.0);
            metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
            metal::float4 _e446 = partial.inner[half_ + local_8];
            all = _e446;
            other = 1u;
            bool loop_init_1 = true;
            while(true) {
                if (!loop_init_1) {
                    uint _e463 = other;
                    other = _e463 + 1u;
                }
                loop_init_1 = false;
                uint _e450 = other;
                if (_e450 < 8u) {
                } else {
                    break;
                }
                {
                    metal::float4 _e453 = all;
                    uint _e455 = other;
                    metal::float4 _e461 = partial.inner[(half_ + (_e455 * 32u)) + local_8];
                    all = _e453 + _e461;
                }
            }
            if (inside) {
                float _e467 = all.x;
                float d = strength * (v - (g * _e467));
                if (eighth == 0u) {
                    uint _e476 = p.value_heads;
                    uint _e481 = p.value_dim;
                    float _e486 = all.z;
                    float _e488 = all.y;
                    y[(((row_1 * _e476) + head) * _e481) + column] = metal::fma(_e486, d, g * _e488);
                }
                float _e491 = s0_;
                s0_ = metal::fma(d, kept0_, _e491 * g);
                float _e494 = s1_;
                s1_ = metal::fma(d, kept1_, _e494 * g);
                float _e497 = s2_;
                s2_ = metal::fma(d, kept2_, _e497 * g);
                float _e500 = s3_;
                s3_ = metal::fma(d, kept3_, _e500 * g);
            }
        }
    }
    if (inside) {
        local_4 = (low + 0u) < 32u;
    } else {
        local_4 = false;
    }
    bool _e513 = local_4;
    if (_e513) {
        uint _e518 = p.value_dim;
        float _e522 = s0_;
        state[at_state + (0u * _e518)] = _e522;
    }
    if (inside) {
        local_5 = (low + 1u) < 32u;
    } else {
        local_5 = false;
    }
    bool _e530 = local_5;
    if (_e530) {
        uint _e535 = p.value_dim;
        float _e539 = s1_;
        state[at_state + (1u * _e535)] = _e539;
    }
    if (inside) {
        local_6 = (low + 2u) < 32u;
    } else {
        local_6 = false;
    }
    bool _e547 = local_6;
    if (_e547) {
        uint _e552 = p.value_dim;
        float _e556 = s2_;
        state[at_state + (2u * _e552)] = _e556;
    }
    if (inside) {
        local_7 = (low + 3u) < 32u;
    } else {
        local_7 = false;
    }
    bool _e564 = local_7;
    if (_e564) {
        uint _e569 = p.value_dim;
        float _e573 = s3_;
        state[at_state + (3u * _e569)] = _e573;
        return;
    } else {
        return;
    }
}
