// language: metal2.4
#include <metal_stdlib>
#include <simd/simd.h>

using metal::uint;

struct _mslBufferSizes {
    uint size0;
    uint size1;
    uint size2;
    uint size3;
};

typedef float type_1[1];
typedef uint type_3[1];
struct Parameters {
    uint heads;
    uint dim;
    uint pairs;
    uint epsilon;
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
, device type_1 const& weight [[buffer(1)]]
, device type_1 const& angles [[buffer(2)]]
, device type_1& x [[buffer(3)]]
, device type_3 const& control [[buffer(4)]]
, constant Parameters& p [[buffer(0)]]
, threadgroup type_4& red
, threadgroup type_4& row
, constant _mslBufferSizes& _buffer_sizes [[buffer(5)]]
) {
    float value = 0.0;
    bool local = {};
    uint _e4 = control[0];
    if (_e4 != 0u) {
        return;
    }
    uint _e10 = p.heads;
    uint _e16 = p.dim;
    uint at = ((wid.y * _e10) + wid.x) * _e16;
    uint _e22 = p.dim;
    if (lid < _e22) {
        float _e27 = x[at + lid];
        value = _e27;
    }
    float _e30 = value;
    float _e31 = value;
    red.inner[lid] = _e30 * _e31;
    float _e33 = tree_sum(lid, red);
    uint _e36 = p.dim;
    uint _e41 = p.epsilon;
    float factor = 1.0 / metal::sqrt((_e33 / static_cast<float>(_e36)) + as_type<float>(_e41));
    float _e49 = value;
    row.inner[lid] = _e49 * factor;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    uint _e53 = p.dim;
    if (lid < _e53) {
        float _e59 = row.inner[lid];
        float _e62 = weight[lid];
        row.inner[lid] = _e59 * _e62;
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    uint _e66 = p.pairs;
    if (lid < _e66) {
        uint _e71 = p.pairs;
        uint angle = ((wid.y * _e71) + lid) * 2u;
        float c_1 = angles[angle];
        float s = angles[angle + 1u];
        float a_1 = row.inner[lid];
        uint _e90 = p.pairs;
        float b_1 = row.inner[lid + _e90];
        x[at + lid] = metal::fma(a_1, c_1, -((b_1 * s)));
        uint _e104 = p.pairs;
        x[(at + lid) + _e104] = metal::fma(a_1, s, b_1 * c_1);
        return;
    } else {
        uint _e112 = p.pairs;
        if (lid >= (2u * _e112)) {
            uint _e119 = p.dim;
            local = lid < _e119;
        } else {
            local = false;
        }
        bool _e122 = local;
        if (_e122) {
            float _e128 = row.inner[lid];
            x[at + lid] = _e128;
            return;
        } else {
            return;
        }
    }
}
