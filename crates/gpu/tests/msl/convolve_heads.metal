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
typedef uint type_3[1];
struct Parameters {
    uint channels;
    uint key_heads;
    uint key_dim;
    uint value_dim;
    uint row;
};
struct type_4 {
    float inner[256];
};

float sixteen(
    uint first,
    uint step,
    threadgroup type_4& red
) {
    float _e4 = red.inner[first];
    float _e8 = red.inner[first + step];
    float _e15 = red.inner[first + (2u * step)];
    float _e21 = red.inner[first + (3u * step)];
    float a = (_e4 + _e8) + (_e15 + _e21);
    float _e29 = red.inner[first + (4u * step)];
    float _e35 = red.inner[first + (5u * step)];
    float _e42 = red.inner[first + (6u * step)];
    float _e48 = red.inner[first + (7u * step)];
    float b = (_e29 + _e35) + (_e42 + _e48);
    float _e56 = red.inner[first + (8u * step)];
    float _e62 = red.inner[first + (9u * step)];
    float _e69 = red.inner[first + (10u * step)];
    float _e75 = red.inner[first + (11u * step)];
    float c = (_e56 + _e62) + (_e69 + _e75);
    float _e83 = red.inner[first + (12u * step)];
    float _e89 = red.inner[first + (13u * step)];
    float _e96 = red.inner[first + (14u * step)];
    float _e102 = red.inner[first + (15u * step)];
    float d = (_e83 + _e89) + (_e96 + _e102);
    return (a + b) + (c + d);
}

float tree_sum(
    uint lid_1,
    threadgroup type_4& red
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

struct main_Input {
};
[[max_total_threads_per_threadgroup(256)]] kernel void main_(
  uint lid [[thread_index_in_threadgroup]]
, metal::uint3 wid [[threadgroup_position_in_grid]]
, device type_1 const& x [[buffer(1)]]
, device type_1 const& weight [[buffer(2)]]
, device type_1& tail [[buffer(3)]]
, device type_1& y [[buffer(4)]]
, device type_3 const& control [[buffer(5)]]
, constant Parameters& p [[buffer(0)]]
, threadgroup type_4& red
, constant _mslBufferSizes& _buffer_sizes [[buffer(6)]]
) {
    float value = 0.0;
    float sum = 0.0;
    float factor = 1.0;
    uint _e4 = control[0];
    if (_e4 != 0u) {
        return;
    }
    uint _e11 = p.key_heads;
    bool normed = wid.x < (2u * _e11);
    uint _e16 = p.value_dim;
    uint _e19 = p.key_dim;
    uint dim = normed ? _e19 : _e16;
    uint _e24 = p.key_heads;
    uint _e28 = p.key_dim;
    uint _e34 = p.key_heads;
    uint _e39 = p.value_dim;
    uint _e45 = p.key_dim;
    uint before = normed ? (wid.x * _e45) : (((2u * _e24) * _e28) + ((wid.x - (2u * _e34)) * _e39));
    uint c_1 = before + lid;
    if (lid < dim) {
        uint _e58 = p.channels;
        float u0_ = tail[(0u * _e58) + c_1];
        uint _e67 = p.channels;
        float u1_ = tail[(1u * _e67) + c_1];
        uint _e76 = p.channels;
        float u2_ = tail[(2u * _e76) + c_1];
        uint _e84 = p.row;
        uint _e87 = p.channels;
        float u3_ = x[(_e84 * _e87) + c_1];
        float _e98 = weight[(c_1 * 4u) + 0u];
        float _e99 = sum;
        sum = metal::fma(u0_, _e98, _e99);
        float _e107 = weight[(c_1 * 4u) + 1u];
        float _e108 = sum;
        sum = metal::fma(u1_, _e107, _e108);
        float _e116 = weight[(c_1 * 4u) + 2u];
        float _e117 = sum;
        sum = metal::fma(u2_, _e116, _e117);
        float _e125 = weight[(c_1 * 4u) + 3u];
        float _e126 = sum;
        sum = metal::fma(u3_, _e125, _e126);
        uint _e132 = p.channels;
        tail[(0u * _e132) + c_1] = u1_;
        uint _e140 = p.channels;
        tail[(1u * _e140) + c_1] = u2_;
        uint _e148 = p.channels;
        tail[(2u * _e148) + c_1] = u3_;
        float _e152 = sum;
        float _e153 = sum;
        value = _e152 / (1.0 + metal::exp(-(_e153)));
    }
    float _e161 = value;
    float _e162 = value;
    red.inner[lid] = _e161 * _e162;
    float _e164 = tree_sum(lid, red);
    float root = metal::sqrt(_e164 + 0.000001);
    uint _e173 = p.key_heads;
    if (wid.x < _e173) {
        uint _e177 = p.key_dim;
        factor = 1.0 / metal::sqrt(static_cast<float>(_e177));
    }
    if (lid < dim) {
        uint _e186 = p.row;
        uint _e189 = p.channels;
        float _e193 = value;
        float _e194 = value;
        float _e195 = factor;
        y[(_e186 * _e189) + c_1] = normed ? (_e194 * (_e195 / root)) : _e193;
        return;
    } else {
        return;
    }
}
