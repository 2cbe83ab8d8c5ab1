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
    uint row;
    uint position;
};
struct type_4 {
    float inner[256];
};

struct main_Input {
};
[[max_total_threads_per_threadgroup(256)]] kernel void main_(
  uint lid [[thread_index_in_threadgroup]]
, metal::uint3 wid [[threadgroup_position_in_grid]]
, device type_1 const& key [[buffer(1)]]
, device type_1 const& value [[buffer(2)]]
, device type_1 const& query_bias [[buffer(3)]]
, device type_1 const& key_bias [[buffer(4)]]
, device type_1 const& value_bias [[buffer(5)]]
, device type_1 const& angles [[buffer(6)]]
, device type_1& query [[buffer(7)]]
, device type_3& keys [[buffer(8)]]
, device type_3& values [[buffer(9)]]
, device type_3 const& control [[buffer(10)]]
, constant Parameters& p [[buffer(0)]]
, threadgroup type_4& row
, constant _mslBufferSizes& _buffer_sizes [[buffer(11)]]
) {
    bool local = {};
    float number = 0.0;
    bool local_1 = {};
    bool local_2 = {};
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
    uint _e31 = p.query_heads;
    uint _e37 = p.dim;
    uint at_query = (((_e28 * _e31) + wid.x) * _e37) + lid;
    uint _e42 = p.row;
    uint _e45 = p.key_value_heads;
    uint _e49 = p.dim;
    uint at = ((_e42 * _e45) * _e49) + lid;
    uint _e56 = p.dim;
    if (lid < _e56) {
        if (of_query) {
            float _e60 = query[at_query];
            uint _e65 = p.dim;
            float _e69 = query_bias[(wid.x * _e65) + lid];
            number = _e60 + _e69;
        } else {
            if (of_key) {
                uint _e74 = p.dim;
                float _e78 = key[at + (other * _e74)];
                uint _e82 = p.dim;
                float _e86 = key_bias[(other * _e82) + lid];
                number = _e78 + _e86;
            } else {
                uint _e90 = p.key_value_heads;
                uint _e94 = p.dim;
                uint head = (other - _e90) * _e94;
                float _e99 = value[at + head];
                float _e103 = value_bias[head + lid];
                number = _e99 + _e103;
            }
        }
    }
    float _e107 = number;
    row.inner[lid] = _e107;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if (!(of_query)) {
        local_1 = of_key;
    } else {
        local_1 = true;
    }
    bool _e112 = local_1;
    if (_e112) {
        uint _e118 = p.pairs;
        local_2 = lid < (2u * _e118);
    } else {
        local_2 = false;
    }
    bool _e122 = local_2;
    if (_e122) {
        uint _e125 = p.pairs;
        uint _e129 = p.pairs;
        uint pair = (lid >= _e129) ? (lid - _e125) : lid;
        uint _e134 = p.row;
        uint _e137 = p.pairs;
        uint angle = ((_e134 * _e137) + pair) * 2u;
        float c = angles[angle];
        float s = angles[angle + 1u];
        float a = row.inner[pair];
        uint _e156 = p.pairs;
        float b = row.inner[pair + _e156];
        uint _e167 = p.pairs;
        number = (lid >= _e167) ? metal::fma(a, s, b * c) : metal::fma(a, c, -((b * s)));
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    float _e172 = number;
    row.inner[lid] = _e172;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if (of_query) {
        uint _e175 = p.dim;
        if (lid < _e175) {
            float _e179 = number;
            query[at_query] = _e179;
        }
        return;
    }
    uint _e182 = p.dim;
    if (lid < (_e182 / 2u)) {
        float _e190 = row.inner[2u * lid];
        float _e197 = row.inner[(2u * lid) + 1u];
        uint word = as_type<uint>(half2(metal::float2(_e190, _e197)));
        uint _e202 = p.position;
        uint _e205 = p.key_value_heads;
        uint _e209 = p.key_value_heads;
        uint _e214 = p.dim;
        uint to = (((_e202 * _e205) + (other % _e209)) * (_e214 / 2u)) + lid;
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
