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

typedef float type_1[1];
typedef uint type_3[1];
struct Parameters {
    uint key_heads;
    uint value_heads;
    uint value_dim;
    uint tiled;
    uint first;
    uint tokens;
};
struct type_5 {
    metal::float4 inner[512];
};

struct main_Input {
};
[[max_total_threads_per_threadgroup(256)]] kernel void main_(
  uint lid [[thread_index_in_threadgroup]]
, metal::uint3 wid [[threadgroup_position_in_grid]]
, device type_1 const& x [[buffer(1)]]
, device type_1 const& beta [[buffer(2)]]
, device type_1 const& decay [[buffer(3)]]
, device type_1 const& rate [[buffer(4)]]
, device type_1 const& bias [[buffer(5)]]
, device type_1& state [[buffer(6)]]
, device type_1& y [[buffer(7)]]
, device type_3 const& control [[buffer(8)]]
, constant Parameters& p [[buffer(0)]]
, threadgroup type_5& partial
, constant _mslBufferSizes& _buffer_sizes [[buffer(9)]]
) {
    uint key_head = {};
    float s0_ = 0.0;
    bool local = {};
    float s1_ = 0.0;
    bool local_1 = {};
    uint t = 0u;
    float u = {};
    float w = {};
    float qk = {};
    float q0_ = {};
    float k0_ = {};
    float q1_ = {};
    float k1_ = {};
    metal::float4 all = {};
    uint other = {};
    bool local_2 = {};
    bool local_3 = {};
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
    uint local_4 = lid & 31u;
    uint eighth = lid >> 5u;
    uint column = (wid.y * 32u) + local_4;
    uint _e36 = p.value_dim;
    bool inside = column < _e36;
    uint low = eighth * 2u;
    uint _e43 = p.key_heads;
    uint _e49 = p.value_heads;
    uint _e52 = p.value_dim;
    uint channels = ((2u * _e43) * 16u) + (_e49 * _e52);
    uint _e60 = p.value_dim;
    uint at_state = (((head * 16u) + low) * _e60) + column;
    if (inside) {
        local = (low + 0u) < 16u;
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
        local_1 = (low + 1u) < 16u;
    } else {
        local_1 = false;
    }
    bool _e91 = local_1;
    if (_e91) {
        uint _e96 = p.value_dim;
        float _e100 = state[at_state + (1u * _e96)];
        s1_ = _e100;
    }
    bool loop_init = true;
    while(true) {
        if (!loop_init) {
            uint _e319 = t;
            t = _e319 + 1u;
        }
        loop_init = false;
        uint _e103 = t;
        uint _e106 = p.tokens;
        if (_e103 < _e106) {
        } else {
            break;
        }
        {
            uint _e110 = p.first;
            uint _e111 = t;
            uint row = _e110 + _e111;
            uint _e114 = key_head;
            uint at_query = ((row * channels) + (_e114 * 16u)) + low;
            uint _e121 = p.key_heads;
            uint at_key = at_query + (_e121 * 16u);
            uint _e128 = p.value_heads;
            float _e132 = decay[(row * _e128) + head];
            float _e135 = bias[head];
            float a = _e132 + _e135;
            float softplus = metal::max(a, 0.0) + metal::log(1.0 + metal::exp(-(metal::abs(a))));
            float _e148 = rate[head];
            float g = metal::exp(-((_e148 * softplus)));
            uint _e155 = p.value_heads;
            float _e159 = beta[(row * _e155) + head];
            float strength = 1.0 / (1.0 + metal::exp(-(_e159)));
            u = 0.0;
            w = 0.0;
            qk = 0.0;
            q0_ = 0.0;
            k0_ = 0.0;
            if ((low + 0u) < 16u) {
                float _e184 = x[at_query + 0u];
                q0_ = _e184;
                float _e189 = x[at_key + 0u];
                k0_ = _e189;
            }
            float _e190 = s0_;
            float _e191 = k0_;
            float _e192 = u;
            u = metal::fma(_e190, _e191, _e192);
            float _e194 = s0_;
            float _e195 = q0_;
            float _e196 = w;
            w = metal::fma(_e194, _e195, _e196);
            float _e198 = q0_;
            float _e199 = k0_;
            float _e200 = qk;
            qk = metal::fma(_e198, _e199, _e200);
            q1_ = 0.0;
            k1_ = 0.0;
            if ((low + 1u) < 16u) {
                float _e214 = x[at_query + 1u];
                q1_ = _e214;
                float _e219 = x[at_key + 1u];
                k1_ = _e219;
            }
            float _e220 = s1_;
            float _e221 = k1_;
            float _e222 = u;
            u = metal::fma(_e220, _e221, _e222);
            float _e224 = s1_;
            float _e225 = q1_;
            float _e226 = w;
            w = metal::fma(_e224, _e225, _e226);
            float _e228 = q1_;
            float _e229 = k1_;
            float _e230 = qk;
            qk = metal::fma(_e228, _e229, _e230);
            uint _e232 = t;
            uint half_ = (_e232 & 1u) * 256u;
            float _e240 = u;
            float _e241 = w;
            float _e242 = qk;
            partial.inner[half_ + lid] = metal::float4(_e240, _e241, _e242, 0.0);
            metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
            metal::float4 _e248 = partial.inner[half_ + local_4];
            all = _e248;
            other = 1u;
            bool loop_init_1 = true;
            while(true) {
                if (!loop_init_1) {
                    uint _e265 = other;
                    other = _e265 + 1u;
                }
                loop_init_1 = false;
                uint _e252 = other;
                if (_e252 < 8u) {
                } else {
                    break;
                }
                {
                    metal::float4 _e255 = all;
                    uint _e257 = other;
                    metal::float4 _e263 = partial.inner[(half_ + (_e257 * 32u)) + local_4];
                    all = _e255 + _e263;
                }
            }
            if (inside) {
                uint _e273 = p.key_heads;
                uint _e280 = p.value_dim;
                float v = x[(((row * channels) + ((2u * _e273) * 16u)) + (head * _e280)) + column];
                float _e287 = all.x;
                float d = strength * (v - (g * _e287));
                if (eighth == 0u) {
                    uint _e296 = p.value_heads;
                    uint _e301 = p.value_dim;
                    float _e306 = all.z;
                    float _e308 = all.y;
                    y[(((row * _e296) + head) * _e301) + column] = metal::fma(_e306, d, g * _e308);
                }
                float _e311 = k0_;
                float _e312 = s0_;
                s0_ = metal::fma(d, _e311, _e312 * g);
                float _e315 = k1_;
                float _e316 = s1_;
                s1_ = metal::fma(d, _e315, _e316 * g);
            }
        }
    }
    if (inside) {
        local_2 = (low + 0u) < 16u;
    } else {
        local_2 = false;
    }
    bool _e329 = local_2;
    if (_e329) {
        uint _e334 = p.value_dim;
        float _e338 = s0_;
        state[at_state + (0u * _e334)] = _e338;
    }
    if (inside) {
        local_3 = (low + 1u) < 16u;
    } else {
        local_3 = false;
    }
    bool _e346 = local_3;
    if (_e346) {
        uint _e351 = p.value_dim;
        float _e355 = s1_;
        state[at_state + (1u * _e351)] = _e355;
        return;
    } else {
        return;
    }
}
