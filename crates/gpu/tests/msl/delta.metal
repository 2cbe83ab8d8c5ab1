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
};

typedef float type_1[1];
struct Parameters {
    uint key_heads;
    uint value_heads;
    uint value_dim;
    uint tiled;
    uint first;
    uint tokens;
};
struct type_4 {
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
, constant Parameters& p [[buffer(0)]]
, threadgroup type_4& partial
, constant _mslBufferSizes& _buffer_sizes [[buffer(8)]]
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
    uint head = wid.x;
    uint _e5 = p.value_heads;
    uint _e8 = p.key_heads;
    key_head = head / (_e5 / _e8);
    uint _e14 = p.tiled;
    if (_e14 != 0u) {
        uint _e19 = p.key_heads;
        key_head = head % _e19;
    }
    uint local_4 = lid & 31u;
    uint eighth = lid >> 5u;
    uint column = (wid.y * 32u) + local_4;
    uint _e31 = p.value_dim;
    bool inside = column < _e31;
    uint low = eighth * 2u;
    uint _e38 = p.key_heads;
    uint _e44 = p.value_heads;
    uint _e47 = p.value_dim;
    uint channels = ((2u * _e38) * 16u) + (_e44 * _e47);
    uint _e55 = p.value_dim;
    uint at_state = (((head * 16u) + low) * _e55) + column;
    if (inside) {
        local = (low + 0u) < 16u;
    } else {
        local = false;
    }
    bool _e67 = local;
    if (_e67) {
        uint _e72 = p.value_dim;
        float _e76 = state[at_state + (0u * _e72)];
        s0_ = _e76;
    }
    if (inside) {
        local_1 = (low + 1u) < 16u;
    } else {
        local_1 = false;
    }
    bool _e86 = local_1;
    if (_e86) {
        uint _e91 = p.value_dim;
        float _e95 = state[at_state + (1u * _e91)];
        s1_ = _e95;
    }
    bool loop_init = true;
    while(true) {
        if (!loop_init) {
            uint _e314 = t;
            t = _e314 + 1u;
        }
        loop_init = false;
        uint _e98 = t;
        uint _e101 = p.tokens;
        if (_e98 < _e101) {
        } else {
            break;
        }
        {
            uint _e105 = p.first;
            uint _e106 = t;
            uint row = _e105 + _e106;
            uint _e109 = key_head;
            uint at_query = ((row * channels) + (_e109 * 16u)) + low;
            uint _e116 = p.key_heads;
            uint at_key = at_query + (_e116 * 16u);
            uint _e123 = p.value_heads;
            float _e127 = decay[(row * _e123) + head];
            float _e130 = bias[head];
            float a = _e127 + _e130;
            float softplus = metal::max(a, 0.0) + metal::log(1.0 + metal::exp(-(metal::abs(a))));
            float _e143 = rate[head];
            float g = metal::exp(-((_e143 * softplus)));
            uint _e150 = p.value_heads;
            float _e154 = beta[(row * _e150) + head];
            float strength = 1.0 / (1.0 + metal::exp(-(_e154)));
            u = 0.0;
            w = 0.0;
            qk = 0.0;
            q0_ = 0.0;
            k0_ = 0.0;
            if ((low + 0u) < 16u) {
                float _e179 = x[at_query + 0u];
                q0_ = _e179;
                float _e184 = x[at_key + 0u];
                k0_ = _e184;
            }
            float _e185 = s0_;
            float _e186 = k0_;
            float _e187 = u;
            u = metal::fma(_e185, _e186, _e187);
            float _e189 = s0_;
            float _e190 = q0_;
            float _e191 = w;
            w = metal::fma(_e189, _e190, _e191);
            float _e193 = q0_;
            float _e194 = k0_;
            float _e195 = qk;
            qk = metal::fma(_e193, _e194, _e195);
            q1_ = 0.0;
            k1_ = 0.0;
            if ((low + 1u) < 16u) {
                float _e209 = x[at_query + 1u];
                q1_ = _e209;
                float _e214 = x[at_key + 1u];
                k1_ = _e214;
            }
            float _e215 = s1_;
            float _e216 = k1_;
            float _e217 = u;
            u = metal::fma(_e215, _e216, _e217);
            float _e219 = s1_;
            float _e220 = q1_;
            float _e221 = w;
            w = metal::fma(_e219, _e220, _e221);
            float _e223 = q1_;
            float _e224 = k1_;
            float _e225 = qk;
            qk = metal::fma(_e223, _e224, _e225);
            uint _e227 = t;
            uint half_ = (_e227 & 1u) * 256u;
            float _e235 = u;
            float _e236 = w;
            float _e237 = qk;
            partial.inner[half_ + lid] = metal::float4(_e235, _e236, _e237, 0.0);
            metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
            metal::float4 _e243 = partial.inner[half_ + local_4];
            all = _e243;
            other = 1u;
            bool loop_init_1 = true;
            while(true) {
                if (!loop_init_1) {
                    uint _e260 = other;
                    other = _e260 + 1u;
                }
                loop_init_1 = false;
                uint _e247 = other;
                if (_e247 < 8u) {
                } else {
                    break;
                }
                {
                    metal::float4 _e250 = all;
                    uint _e252 = other;
                    metal::float4 _e258 = partial.inner[(half_ + (_e252 * 32u)) + local_4];
                    all = _e250 + _e258;
                }
            }
            if (inside) {
                uint _e268 = p.key_heads;
                uint _e275 = p.value_dim;
                float v = x[(((row * channels) + ((2u * _e268) * 16u)) + (head * _e275)) + column];
                float _e282 = all.x;
                float d = strength * (v - (g * _e282));
                if (eighth == 0u) {
                    uint _e291 = p.value_heads;
                    uint _e296 = p.value_dim;
                    float _e301 = all.z;
                    float _e303 = all.y;
                    y[(((row * _e291) + head) * _e296) + column] = metal::fma(_e301, d, g * _e303);
                }
                float _e306 = k0_;
                float _e307 = s0_;
                s0_ = metal::fma(d, _e306, _e307 * g);
                float _e310 = k1_;
                float _e311 = s1_;
                s1_ = metal::fma(d, _e310, _e311 * g);
            }
        }
    }
    if (inside) {
        local_2 = (low + 0u) < 16u;
    } else {
        local_2 = false;
    }
    bool _e324 = local_2;
    if (_e324) {
        uint _e329 = p.value_dim;
        float _e333 = s0_;
        state[at_state + (0u * _e329)] = _e333;
    }
    if (inside) {
        local_3 = (low + 1u) < 16u;
    } else {
        local_3 = false;
    }
    bool _e341 = local_3;
    if (_e341) {
        uint _e346 = p.value_dim;
        float _e350 = s1_;
        state[at_state + (1u * _e346)] = _e350;
        return;
    } else {
        return;
    }
}
