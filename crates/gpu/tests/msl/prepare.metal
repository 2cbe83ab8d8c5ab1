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
    uint size8;
    uint size9;
};

typedef float type_1[1];
typedef uint type_3[1];
struct Parameters {
    uint query_heads;
    uint key_value_heads;
    uint dim;
    uint pairs;
    uint epsilon;
    uint row;
    uint position;
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
, device type_1 const& both [[buffer(1)]]
, device type_1 const& key [[buffer(2)]]
, device type_1 const& value [[buffer(3)]]
, device type_1 const& query_weight [[buffer(4)]]
, device type_1 const& key_weight [[buffer(5)]]
, device type_1 const& angles [[buffer(6)]]
, device type_1& query [[buffer(7)]]
, device type_3& keys [[buffer(8)]]
, device type_3& values [[buffer(9)]]
, device type_3 const& control [[buffer(10)]]
, constant Parameters& p [[buffer(0)]]
, threadgroup type_4& red
, threadgroup type_4& row
, constant _mslBufferSizes& _buffer_sizes [[buffer(11)]]
) {
    bool local = {};
    float number = 0.0;
    float weight = 0.0;
    bool local_1 = {};
    float turned = {};
    bool local_2 = {};
    bool local_3 = {};
    uint _e4 = control[0];
    if (_e4 != 0u) {
        return;
    }
    uint _e10 = p.query_heads;
    bool of_query = wid.x < _e10;
    uint _e15 = p.query_heads;
    uint other = wid.x - _e15;
    if (!(of_query)) {
        uint _e22 = p.key_value_heads;
        local = other < _e22;
    } else {
        local = false;
    }
    bool of_key = local;
    uint _e28 = p.row;
    uint _e31 = p.key_value_heads;
    uint _e35 = p.dim;
    uint at = ((_e28 * _e31) * _e35) + lid;
    uint _e44 = p.dim;
    if (lid < _e44) {
        if (of_query) {
            uint _e49 = p.row;
            uint _e52 = p.query_heads;
            uint _e60 = p.dim;
            float _e64 = both[((((_e49 * _e52) + wid.x) * 2u) * _e60) + lid];
            number = _e64;
            float _e67 = query_weight[lid];
            weight = _e67;
        } else {
            if (of_key) {
                uint _e71 = p.dim;
                float _e75 = key[at + (other * _e71)];
                number = _e75;
                float _e78 = key_weight[lid];
                weight = _e78;
            } else {
                uint _e82 = p.key_value_heads;
                uint _e86 = p.dim;
                float _e90 = value[at + ((other - _e82) * _e86)];
                number = _e90;
            }
        }
    }
    float _e93 = number;
    float _e94 = number;
    red.inner[lid] = _e93 * _e94;
    float _e96 = tree_sum(lid, red);
    uint _e99 = p.dim;
    uint _e104 = p.epsilon;
    float factor = 1.0 / metal::sqrt((_e96 / static_cast<float>(_e99)) + as_type<float>(_e104));
    float _e112 = number;
    float _e113 = number;
    float _e115 = weight;
    if (!(of_query)) {
        local_1 = of_key;
    } else {
        local_1 = true;
    }
    bool _e121 = local_1;
    row.inner[lid] = _e121 ? ((_e113 * factor) * _e115) : _e112;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    float _e125 = row.inner[lid];
    turned = _e125;
    if (!(of_query)) {
        local_2 = of_key;
    } else {
        local_2 = true;
    }
    bool _e131 = local_2;
    if (_e131) {
        uint _e137 = p.pairs;
        local_3 = lid < (2u * _e137);
    } else {
        local_3 = false;
    }
    bool _e141 = local_3;
    if (_e141) {
        uint _e144 = p.pairs;
        uint _e148 = p.pairs;
        uint pair = (lid >= _e148) ? (lid - _e144) : lid;
        uint _e153 = p.row;
        uint _e156 = p.pairs;
        uint angle = ((_e153 * _e156) + pair) * 2u;
        float c_1 = angles[angle];
        float s = angles[angle + 1u];
        float a_1 = row.inner[pair];
        uint _e175 = p.pairs;
        float b_1 = row.inner[pair + _e175];
        uint _e186 = p.pairs;
        turned = (lid >= _e186) ? metal::fma(a_1, s, b_1 * c_1) : metal::fma(a_1, c_1, -((b_1 * s)));
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    float _e191 = turned;
    row.inner[lid] = _e191;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if (of_query) {
        uint _e194 = p.dim;
        if (lid < _e194) {
            uint _e199 = p.row;
            uint _e202 = p.query_heads;
            uint _e208 = p.dim;
            float _e212 = turned;
            query[(((_e199 * _e202) + wid.x) * _e208) + lid] = _e212;
        }
        return;
    }
    uint _e215 = p.dim;
    if (lid < (_e215 / 2u)) {
        float _e223 = row.inner[2u * lid];
        float _e230 = row.inner[(2u * lid) + 1u];
        uint word = as_type<uint>(half2(metal::float2(_e223, _e230)));
        uint _e235 = p.position;
        uint _e238 = p.key_value_heads;
        uint _e242 = p.key_value_heads;
        uint _e247 = p.dim;
        uint to = (((_e235 * _e238) + (other % _e242)) * (_e247 / 2u)) + lid;
        if (of_key) {
            keys[to] = word;
            return;
        } else {
            values[to] = word;
            return;
        }
    } else {
        return;
    }
}
