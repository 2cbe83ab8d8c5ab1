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
    metal::float4 s0_ = metal::float4(0.0);
    bool local = {};
    bool local_1 = {};
    bool local_2 = {};
    bool local_3 = {};
    metal::float4 now = metal::float4(0.0);
    metal::float4 q0_ = metal::float4(0.0);
    metal::float4 k0_ = metal::float4(0.0);
    uint t = 0u;
    metal::float4 u = {};
    metal::float4 w = {};
    metal::float4 qk = {};
    metal::float3 all = {};
    bool local_4 = {};
    bool local_5 = {};
    bool local_6 = {};
    bool local_7 = {};
    bool local_8 = {};
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
    uint local_9 = lid & 31u;
    uint eighth = lid >> 5u;
    uint column = (wid.y * 32u) + local_9;
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
        local = true;
    } else {
        local = false;
    }
    bool _e70 = local;
    if (_e70) {
        uint _e76 = p.value_dim;
        float _e80 = state[at_state + (0u * _e76)];
        s0_.x = _e80;
    }
    if (inside) {
        local_1 = true;
    } else {
        local_1 = false;
    }
    bool _e85 = local_1;
    if (_e85) {
        uint _e91 = p.value_dim;
        float _e95 = state[at_state + (1u * _e91)];
        s0_.y = _e95;
    }
    if (inside) {
        local_2 = true;
    } else {
        local_2 = false;
    }
    bool _e100 = local_2;
    if (_e100) {
        uint _e106 = p.value_dim;
        float _e110 = state[at_state + (2u * _e106)];
        s0_.z = _e110;
    }
    if (inside) {
        local_3 = true;
    } else {
        local_3 = false;
    }
    bool _e115 = local_3;
    if (_e115) {
        uint _e121 = p.value_dim;
        float _e125 = state[at_state + (3u * _e121)];
        s0_.w = _e125;
    }
    float own_rate = rate[head];
    float own_bias = bias[head];
    {
        uint row = p.first;
        uint _e145 = key_head;
        uint at_query = ((row * channels) + (_e145 * 32u)) + low;
        uint _e152 = p.key_heads;
        uint at_key = at_query + (_e152 * 32u);
        uint _e160 = p.key_heads;
        uint _e167 = p.value_dim;
        uint at_value = (((row * channels) + ((2u * _e160) * 32u)) + (head * _e167)) + column;
        uint _e174 = p.value_heads;
        float _e178 = decay[(row * _e174) + head];
        uint _e182 = p.value_heads;
        float _e186 = beta[(row * _e182) + head];
        now = metal::float4(_e178, _e186, 0.0, 0.0);
        if (inside) {
            float _e198 = x[at_value >> 2u][at_value & 3u];
            now.z = _e198;
        }
        metal::float4 _e205 = x[(at_query >> 2u) + 0u];
        q0_ = _e205;
        metal::float4 _e212 = x[(at_key >> 2u) + 0u];
        k0_ = _e212;
    }
    bool loop_init = true;
    while(true) {
        if (!loop_init) {
            uint _e481 = t;
            t = _e481 + 1u;
        }
        loop_init = false;
        uint _e215 = t;
        uint _e218 = p.tokens;
        if (_e215 < _e218) {
        } else {
            break;
        }
        {
            uint _e222 = p.first;
            uint _e223 = t;
            uint row_1 = _e222 + _e223;
            float _e226 = now.x;
            float a = _e226 + own_bias;
            float softplus = metal::max(a, 0.0) + metal::log(1.0 + metal::exp(-(metal::abs(a))));
            float g = metal::exp(-((own_rate * softplus)));
            float _e241 = now.y;
            float strength = 1.0 / (1.0 + metal::exp(-(_e241)));
            float v = now.z;
            u = metal::float4(0.0);
            w = metal::float4(0.0);
            qk = metal::float4(0.0);
            metal::float4 kept0_ = k0_;
            metal::float4 _e260 = s0_;
            metal::float4 _e261 = k0_;
            metal::float4 _e262 = u;
            u = metal::fma(_e260, _e261, _e262);
            metal::float4 _e264 = s0_;
            metal::float4 _e265 = q0_;
            metal::float4 _e266 = w;
            w = metal::fma(_e264, _e265, _e266);
            metal::float4 _e268 = q0_;
            metal::float4 _e269 = k0_;
            metal::float4 _e270 = qk;
            qk = metal::fma(_e268, _e269, _e270);
            uint _e272 = t;
            uint _e277 = p.tokens;
            if ((_e272 + 1u) < _e277) {
                uint _e281 = p.first;
                uint _e282 = t;
                uint row_2 = (_e281 + _e282) + 1u;
                uint _e287 = key_head;
                uint at_query_1 = ((row_2 * channels) + (_e287 * 32u)) + low;
                uint _e294 = p.key_heads;
                uint at_key_1 = at_query_1 + (_e294 * 32u);
                uint _e302 = p.key_heads;
                uint _e309 = p.value_dim;
                uint at_value_1 = (((row_2 * channels) + ((2u * _e302) * 32u)) + (head * _e309)) + column;
                uint _e316 = p.value_heads;
                float _e320 = decay[(row_2 * _e316) + head];
                uint _e324 = p.value_heads;
                float _e328 = beta[(row_2 * _e324) + head];
                now = metal::float4(_e320, _e328, 0.0, 0.0);
                if (inside) {
                    float _e340 = x[at_value_1 >> 2u][at_value_1 & 3u];
                    now.z = _e340;
                }
                metal::float4 _e347 = x[(at_query_1 >> 2u) + 0u];
                q0_ = _e347;
                metal::float4 _e354 = x[(at_key_1 >> 2u) + 0u];
                k0_ = _e354;
            }
            float _e356 = u.x;
            float _e358 = u.y;
            float _e361 = u.z;
            float _e363 = u.w;
            float _e367 = w.x;
            float _e369 = w.y;
            float _e372 = w.z;
            float _e374 = w.w;
            float _e378 = qk.x;
            float _e380 = qk.y;
            float _e383 = qk.z;
            float _e385 = qk.w;
            all = metal::float3((_e356 + _e358) + (_e361 + _e363), (_e367 + _e369) + (_e372 + _e374), (_e378 + _e380) + (_e383 + _e385));
            uint _e390 = t;
            uint half_ = (_e390 & 1u) * 256u;
            metal::float3 _e398 = all;
            partial.inner[half_ + lid] = metal::float4(_e398, 0.0);
            metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
            uint at = half_ + local_9;
            metal::float4 _e404 = partial.inner[at];
            metal::float4 _e409 = partial.inner[at + 32u];
            metal::float4 _e415 = partial.inner[at + 64u];
            metal::float4 _e420 = partial.inner[at + 96u];
            metal::float4 _e427 = partial.inner[at + 128u];
            metal::float4 _e432 = partial.inner[at + 160u];
            metal::float4 _e438 = partial.inner[at + 192u];
            metal::float4 _e443 = partial.inner[at + 224u];
            all = (((_e404 + _e409) + (_e415 + _e420)) + ((_e427 + _e432) + (_e438 + _e443))).xyz;
            float _e449 = all.x;
            float d = strength * (v - (g * _e449));
            if (inside) {
                local_4 = eighth == 0u;
            } else {
                local_4 = false;
            }
            bool _e458 = local_4;
            if (_e458) {
                uint _e462 = p.value_heads;
                uint _e467 = p.value_dim;
                float _e472 = all.z;
                float _e474 = all.y;
                y[(((row_1 * _e462) + head) * _e467) + column] = metal::fma(_e472, d, g * _e474);
            }
            metal::float4 _e478 = s0_;
            s0_ = metal::fma(metal::float4(d), kept0_, _e478 * g);
        }
    }
    if (inside) {
        local_5 = true;
    } else {
        local_5 = false;
    }
    bool _e488 = local_5;
    if (_e488) {
        uint _e493 = p.value_dim;
        float _e498 = s0_.x;
        state[at_state + (0u * _e493)] = _e498;
    }
    if (inside) {
        local_6 = true;
    } else {
        local_6 = false;
    }
    bool _e503 = local_6;
    if (_e503) {
        uint _e508 = p.value_dim;
        float _e513 = s0_.y;
        state[at_state + (1u * _e508)] = _e513;
    }
    if (inside) {
        local_7 = true;
    } else {
        local_7 = false;
    }
    bool _e518 = local_7;
    if (_e518) {
        uint _e523 = p.value_dim;
        float _e528 = s0_.z;
        state[at_state + (2u * _e523)] = _e528;
    }
    if (inside) {
        local_8 = true;
    } else {
        local_8 = false;
    }
    bool _e533 = local_8;
    if (_e533) {
        uint _e538 = p.value_dim;
        float _e543 = s0_.w;
        state[at_state + (3u * _e538)] = _e543;
        return;
    } else {
        return;
    }
}
