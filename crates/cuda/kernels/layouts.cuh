// Every structure of arguments is laid out as the host writes it, and every kernel takes the one that it is
// launched with. Generated from the lists in src (see src/abi.rs): edit those. Included after all kernels.
#pragma once
#include <cstddef>
#include <type_traits>

namespace layouts {
// A word of 64 bits of the host: an address here, or an integer.
struct Word {};
template <typename Host, typename Device>
constexpr bool same = std::is_same_v<Host, Device>;
template <typename Device>
constexpr bool same<Word, Device> = sizeof(Device) == 8 && (std::is_pointer_v<Device> || std::is_unsigned_v<Device>);
} // namespace layouts

#define STRUCTURE(structure, bytes) static_assert(sizeof(structure) == bytes, "src: " #structure)
#define FIELD(structure, field, type, at)                                          \
    static_assert(offsetof(structure, field) == at, "src: " #structure "." #field); \
    static_assert(layouts::same<type, decltype(structure::field)>, "src: " #structure "." #field)
#define KERNEL(kernel, structure) \
    static_assert(std::is_same_v<decltype(&kernel), void (*)(structure)>, "src: " #kernel)

STRUCTURE(Matrix, 48);
FIELD(Matrix, weight, layouts::Word, 0); FIELD(Matrix, scales, layouts::Word, 8);
FIELD(Matrix, biases, layouts::Word, 16); FIELD(Matrix, rows, uint32_t, 24); FIELD(Matrix, columns, uint32_t, 28);
FIELD(Matrix, kind, uint32_t, 32); FIELD(Matrix, bits, uint32_t, 36); FIELD(Matrix, group, uint32_t, 40);
FIELD(Matrix, scale_kind, uint32_t, 44);

STRUCTURE(Experts, 192);
FIELD(Experts, gate, Matrix, 0); FIELD(Experts, up, Matrix, 48); FIELD(Experts, down, Matrix, 96);
FIELD(Experts, places, layouts::Word, 144); FIELD(Experts, same, uint32_t[9], 152);
FIELD(Experts, equal, uint32_t, 188);

STRUCTURE(LinearJob, 64);
FIELD(LinearJob, matrix, Matrix, 0); FIELD(LinearJob, out, layouts::Word, 48);
FIELD(LinearJob, first_block, uint32_t, 56); FIELD(LinearJob, padding, uint32_t, 60);

STRUCTURE(LinearArguments, 408);
FIELD(LinearArguments, x, layouts::Word, 0); FIELD(LinearArguments, columns, uint32_t, 8);
FIELD(LinearArguments, jobs, uint32_t, 12); FIELD(LinearArguments, add, uint32_t, 16);
FIELD(LinearArguments, padding, uint32_t, 20); FIELD(LinearArguments, job, LinearJob[6], 24);
KERNEL(linear_1, LinearArguments); KERNEL(linear_2, LinearArguments); KERNEL(linear_4, LinearArguments);
KERNEL(linear_blocks, LinearArguments);

STRUCTURE(EmbedArguments, 64);
FIELD(EmbedArguments, table, Matrix, 0); FIELD(EmbedArguments, tokens, layouts::Word, 48);
FIELD(EmbedArguments, out, layouts::Word, 56);
KERNEL(embed, EmbedArguments); KERNEL(embed_blocks, EmbedArguments);

STRUCTURE(ArgMaxArguments, 32);
FIELD(ArgMaxArguments, logits, layouts::Word, 0); FIELD(ArgMaxArguments, partial, layouts::Word, 8);
FIELD(ArgMaxArguments, token, layouts::Word, 16); FIELD(ArgMaxArguments, columns, uint32_t, 24);
FIELD(ArgMaxArguments, blocks, uint32_t, 28);
KERNEL(arg_max_partial, ArgMaxArguments); KERNEL(arg_max_final, ArgMaxArguments);

STRUCTURE(AppendArguments, 64);
FIELD(AppendArguments, keys, layouts::Word, 0); FIELD(AppendArguments, values, layouts::Word, 8);
FIELD(AppendArguments, cache_keys, layouts::Word, 16); FIELD(AppendArguments, cache_values, layouts::Word, 24);
FIELD(AppendArguments, positions, layouts::Word, 32); FIELD(AppendArguments, sequences, layouts::Word, 40);
FIELD(AppendArguments, heads, uint32_t, 48); FIELD(AppendArguments, dim, uint32_t, 52);
FIELD(AppendArguments, context, uint32_t, 56); FIELD(AppendArguments, kv_type, uint32_t, 60);
KERNEL(append_key_values, AppendArguments);

STRUCTURE(AttendArguments, 120);
FIELD(AttendArguments, query, layouts::Word, 0); FIELD(AttendArguments, cache_keys, layouts::Word, 8);
FIELD(AttendArguments, cache_values, layouts::Word, 16); FIELD(AttendArguments, out, layouts::Word, 24);
FIELD(AttendArguments, partial, layouts::Word, 32); FIELD(AttendArguments, positions, layouts::Word, 40);
FIELD(AttendArguments, sequences, layouts::Word, 48); FIELD(AttendArguments, starts, layouts::Word, 56);
FIELD(AttendArguments, sinks, layouts::Word, 64); FIELD(AttendArguments, query_heads, uint32_t, 72);
FIELD(AttendArguments, key_value_heads, uint32_t, 76); FIELD(AttendArguments, dim, uint32_t, 80);
FIELD(AttendArguments, context, uint32_t, 84); FIELD(AttendArguments, splits, uint32_t, 88);
FIELD(AttendArguments, tokens, uint32_t, 92); FIELD(AttendArguments, scale, float, 96);
FIELD(AttendArguments, tokens_per_block, uint32_t, 100); FIELD(AttendArguments, kv_type, uint32_t, 104);
FIELD(AttendArguments, stages, uint32_t, 108); FIELD(AttendArguments, window, uint32_t, 112);
FIELD(AttendArguments, part, uint32_t, 116);
KERNEL(attend_plain_1, AttendArguments); KERNEL(attend_plain_4, AttendArguments);
KERNEL(attend_plain_wide_1, AttendArguments); KERNEL(attend_plain_wide_2, AttendArguments);
KERNEL(attend_step_f16_512, AttendArguments); KERNEL(attend_step_bf16_512, AttendArguments);
KERNEL(attend_chunk_f16_512, AttendArguments); KERNEL(attend_chunk_bf16_512, AttendArguments);
KERNEL(attend_chunk_f16_512_small, AttendArguments); KERNEL(attend_chunk_bf16_512_small, AttendArguments);
KERNEL(attend_join, AttendArguments); KERNEL(attend_join_chunk, AttendArguments);
KERNEL(attend_step_f16_64, AttendArguments); KERNEL(attend_step_f16_128, AttendArguments);
KERNEL(attend_step_f16_256, AttendArguments); KERNEL(attend_step_bf16_64, AttendArguments);
KERNEL(attend_step_bf16_128, AttendArguments); KERNEL(attend_step_bf16_256, AttendArguments);
KERNEL(attend_chunk_f16_64, AttendArguments); KERNEL(attend_chunk_f16_128, AttendArguments);
KERNEL(attend_chunk_f16_256, AttendArguments); KERNEL(attend_chunk_f16_256_small, AttendArguments);
KERNEL(attend_chunk_bf16_64, AttendArguments); KERNEL(attend_chunk_bf16_128, AttendArguments);
KERNEL(attend_chunk_bf16_256, AttendArguments); KERNEL(attend_chunk_bf16_256_small, AttendArguments);
KERNEL(attend_step_q8_128, AttendArguments); KERNEL(attend_step_q8_256, AttendArguments);
KERNEL(attend_chunk_q8_128, AttendArguments); KERNEL(attend_chunk_q8_256, AttendArguments);
KERNEL(attend_chunk_q8_256_small, AttendArguments);

STRUCTURE(TurnArguments, 64);
FIELD(TurnArguments, x, layouts::Word, 0); FIELD(TurnArguments, weight, layouts::Word, 8);
FIELD(TurnArguments, frequencies, layouts::Word, 16); FIELD(TurnArguments, positions, layouts::Word, 24);
FIELD(TurnArguments, heads, uint32_t, 32); FIELD(TurnArguments, dim, uint32_t, 36);
FIELD(TurnArguments, rotated, uint32_t, 40); FIELD(TurnArguments, norm, uint32_t, 44);
FIELD(TurnArguments, epsilon, float, 48); FIELD(TurnArguments, magnitude, float, 52);
FIELD(TurnArguments, direction, float, 56); FIELD(TurnArguments, transform, float, 60);
KERNEL(turn_heads, TurnArguments);

STRUCTURE(SequenceRows, 88);
FIELD(SequenceRows, positions, layouts::Word, 0); FIELD(SequenceRows, sequences, layouts::Word, 8);
FIELD(SequenceRows, starts, layouts::Word, 16); FIELD(SequenceRows, states, layouts::Word, 24);
FIELD(SequenceRows, pages, layouts::Word, 32); FIELD(SequenceRows, state_stride, layouts::Word, 40);
FIELD(SequenceRows, sequence_bytes, layouts::Word, 48); FIELD(SequenceRows, page_bytes, layouts::Word, 56);
FIELD(SequenceRows, tokens, uint32_t, 64); FIELD(SequenceRows, single, uint32_t, 68);
FIELD(SequenceRows, page_tokens, uint32_t, 72); FIELD(SequenceRows, ratio, uint32_t, 76);
FIELD(SequenceRows, overlap, uint32_t, 80); FIELD(SequenceRows, window, uint32_t, 84);

STRUCTURE(WindowArguments, 120);
FIELD(WindowArguments, rows, SequenceRows, 0); FIELD(WindowArguments, keys, layouts::Word, 88);
FIELD(WindowArguments, span, layouts::Word, 96); FIELD(WindowArguments, dim, uint32_t, 104);
FIELD(WindowArguments, kind, uint32_t, 108); FIELD(WindowArguments, rotated, uint32_t, 112);
FIELD(WindowArguments, bytes, uint32_t, 116);
KERNEL(store_window_rows, WindowArguments); KERNEL(keep_window_rows, WindowArguments);

STRUCTURE(PoolArguments, 168);
FIELD(PoolArguments, rows, SequenceRows, 0); FIELD(PoolArguments, values, layouts::Word, 88);
FIELD(PoolArguments, gates, layouts::Word, 96); FIELD(PoolArguments, added, layouts::Word, 104);
FIELD(PoolArguments, norm, layouts::Word, 112); FIELD(PoolArguments, frequencies, layouts::Word, 120);
FIELD(PoolArguments, tail, uint32_t, 128); FIELD(PoolArguments, dim, uint32_t, 132);
FIELD(PoolArguments, kind, uint32_t, 136); FIELD(PoolArguments, place, uint32_t, 140);
FIELD(PoolArguments, bytes, uint32_t, 144); FIELD(PoolArguments, plain, uint32_t, 148);
FIELD(PoolArguments, rotated, uint32_t, 152); FIELD(PoolArguments, epsilon, float, 156);
FIELD(PoolArguments, magnitude, float, 160); FIELD(PoolArguments, transform, float, 164);
KERNEL(pool_rows, PoolArguments); KERNEL(keep_gates, PoolArguments);

STRUCTURE(TransposeArguments, 32);
FIELD(TransposeArguments, x, layouts::Word, 0); FIELD(TransposeArguments, out, layouts::Word, 8);
FIELD(TransposeArguments, first, uint32_t, 16); FIELD(TransposeArguments, second, uint32_t, 20);
FIELD(TransposeArguments, width, uint32_t, 24); FIELD(TransposeArguments, padding, uint32_t, 28);
KERNEL(transpose_rows, TransposeArguments);

STRUCTURE(ScoreArguments, 168);
FIELD(ScoreArguments, rows, SequenceRows, 0); FIELD(ScoreArguments, query, layouts::Word, 88);
FIELD(ScoreArguments, factors, layouts::Word, 96); FIELD(ScoreArguments, scores, layouts::Word, 104);
FIELD(ScoreArguments, chosen, layouts::Word, 112); FIELD(ScoreArguments, candidates, layouts::Word, 120);
FIELD(ScoreArguments, heads, uint32_t, 128); FIELD(ScoreArguments, dim, uint32_t, 132);
FIELD(ScoreArguments, kind, uint32_t, 136); FIELD(ScoreArguments, place, uint32_t, 140);
FIELD(ScoreArguments, bytes, uint32_t, 144); FIELD(ScoreArguments, top, uint32_t, 148);
FIELD(ScoreArguments, stride, uint32_t, 152); FIELD(ScoreArguments, together, uint32_t, 156);
FIELD(ScoreArguments, parts, uint32_t, 160); FIELD(ScoreArguments, padding, uint32_t, 164);
KERNEL(score_rows, ScoreArguments); KERNEL(choose_parts, ScoreArguments); KERNEL(choose_rows, ScoreArguments);
KERNEL(score_units, ScoreArguments); KERNEL(score_split_64, ScoreArguments); KERNEL(score_split_128, ScoreArguments);

STRUCTURE(RowAttentionArguments, 176);
FIELD(RowAttentionArguments, rows, SequenceRows, 0); FIELD(RowAttentionArguments, query, layouts::Word, 88);
FIELD(RowAttentionArguments, out, layouts::Word, 96); FIELD(RowAttentionArguments, partial, layouts::Word, 104);
FIELD(RowAttentionArguments, span, layouts::Word, 112); FIELD(RowAttentionArguments, chosen, layouts::Word, 120);
FIELD(RowAttentionArguments, sinks, layouts::Word, 128); FIELD(RowAttentionArguments, heads, uint32_t, 136);
FIELD(RowAttentionArguments, dim, uint32_t, 140); FIELD(RowAttentionArguments, kind, uint32_t, 144);
FIELD(RowAttentionArguments, plain, uint32_t, 148); FIELD(RowAttentionArguments, place, uint32_t, 152);
FIELD(RowAttentionArguments, bytes, uint32_t, 156); FIELD(RowAttentionArguments, top, uint32_t, 160);
FIELD(RowAttentionArguments, parts, uint32_t, 164); FIELD(RowAttentionArguments, part_rows, uint32_t, 168);
FIELD(RowAttentionArguments, scale, float, 172);
KERNEL(attend_rows, RowAttentionArguments); KERNEL(join_row_parts, RowAttentionArguments);

STRUCTURE(DeltaArguments, 152);
FIELD(DeltaArguments, mixed, layouts::Word, 0); FIELD(DeltaArguments, beta, layouts::Word, 8);
FIELD(DeltaArguments, decay, layouts::Word, 16); FIELD(DeltaArguments, rate, layouts::Word, 24);
FIELD(DeltaArguments, bias, layouts::Word, 32); FIELD(DeltaArguments, state, layouts::Word, 40);
FIELD(DeltaArguments, out, layouts::Word, 48); FIELD(DeltaArguments, sequences, layouts::Word, 56);
FIELD(DeltaArguments, state_stride, layouts::Word, 64); FIELD(DeltaArguments, ring, layouts::Word, 72);
FIELD(DeltaArguments, positions, layouts::Word, 80); FIELD(DeltaArguments, starts, layouts::Word, 88);
FIELD(DeltaArguments, lags, layouts::Word, 96); FIELD(DeltaArguments, ring_stride, layouts::Word, 104);
FIELD(DeltaArguments, tokens, uint32_t, 112); FIELD(DeltaArguments, channels, uint32_t, 116);
FIELD(DeltaArguments, key_heads, uint32_t, 120); FIELD(DeltaArguments, value_heads, uint32_t, 124);
FIELD(DeltaArguments, key_dim, uint32_t, 128); FIELD(DeltaArguments, value_dim, uint32_t, 132);
FIELD(DeltaArguments, tiled, uint32_t, 136); FIELD(DeltaArguments, ring_row, uint32_t, 140);
FIELD(DeltaArguments, decays, uint32_t, 144); FIELD(DeltaArguments, bound, float, 148);
KERNEL(normalise_query_key, DeltaArguments); KERNEL(delta_rule_16, DeltaArguments);
KERNEL(delta_rule_32, DeltaArguments); KERNEL(delta_step_16, DeltaArguments); KERNEL(delta_step_32, DeltaArguments);
KERNEL(delta_round_16, DeltaArguments); KERNEL(delta_round_32, DeltaArguments);
KERNEL(delta_rule_channels, DeltaArguments); KERNEL(delta_step_channels, DeltaArguments);
KERNEL(delta_round_channels, DeltaArguments);

STRUCTURE(DeltaChunkArguments, 112);
FIELD(DeltaChunkArguments, mixed, layouts::Word, 0); FIELD(DeltaChunkArguments, beta, layouts::Word, 8);
FIELD(DeltaChunkArguments, decay, layouts::Word, 16); FIELD(DeltaChunkArguments, rate, layouts::Word, 24);
FIELD(DeltaChunkArguments, bias, layouts::Word, 32); FIELD(DeltaChunkArguments, state, layouts::Word, 40);
FIELD(DeltaChunkArguments, out, layouts::Word, 48); FIELD(DeltaChunkArguments, sequences, layouts::Word, 56);
FIELD(DeltaChunkArguments, state_stride, layouts::Word, 64); FIELD(DeltaChunkArguments, tokens, uint32_t, 72);
FIELD(DeltaChunkArguments, channels, uint32_t, 76); FIELD(DeltaChunkArguments, key_heads, uint32_t, 80);
FIELD(DeltaChunkArguments, value_heads, uint32_t, 84); FIELD(DeltaChunkArguments, key_dim, uint32_t, 88);
FIELD(DeltaChunkArguments, value_dim, uint32_t, 92); FIELD(DeltaChunkArguments, tiled, uint32_t, 96);
FIELD(DeltaChunkArguments, decays, uint32_t, 100); FIELD(DeltaChunkArguments, bound, float, 104);
FIELD(DeltaChunkArguments, padding, uint32_t, 108);
KERNEL(delta_prepare, DeltaChunkArguments); KERNEL(delta_chunk_16, DeltaChunkArguments);
KERNEL(delta_chunk_32, DeltaChunkArguments); KERNEL(delta_chunk_channels, DeltaChunkArguments);

STRUCTURE(DrawArguments, 48);
FIELD(DrawArguments, logits, layouts::Word, 0); FIELD(DrawArguments, partial, layouts::Word, 8);
FIELD(DrawArguments, out, layouts::Word, 16); FIELD(DrawArguments, least, layouts::Word, 24);
FIELD(DrawArguments, columns, uint32_t, 32); FIELD(DrawArguments, lists, uint32_t, 36);
FIELD(DrawArguments, temperature, float, 40); FIELD(DrawArguments, padding, uint32_t, 44);
KERNEL(rank_partial, DrawArguments); KERNEL(rank_final, DrawArguments); KERNEL(weigh, DrawArguments);

STRUCTURE(TileListArguments, 40);
FIELD(TileListArguments, starts, layouts::Word, 0); FIELD(TileListArguments, addresses, layouts::Word, 8);
FIELD(TileListArguments, tiles, layouts::Word, 16); FIELD(TileListArguments, count, layouts::Word, 24);
FIELD(TileListArguments, experts, uint32_t, 32); FIELD(TileListArguments, tile, uint32_t, 36);
KERNEL(list_tiles, TileListArguments);

STRUCTURE(Guess, 56);
FIELD(Guess, logits, layouts::Word, 0); FIELD(Guess, table, layouts::Word, 8); FIELD(Guess, guesses, layouts::Word, 16);
FIELD(Guess, depths, layouts::Word, 24); FIELD(Guess, ended, layouts::Word, 32);
FIELD(Guess, device_slots, layouts::Word, 40); FIELD(Guess, device_bytes, layouts::Word, 48);

STRUCTURE(RouteArguments, 184);
FIELD(RouteArguments, logits, layouts::Word, 0); FIELD(RouteArguments, replaced, layouts::Word, 8);
FIELD(RouteArguments, table, layouts::Word, 16); FIELD(RouteArguments, chosen, layouts::Word, 24);
FIELD(RouteArguments, weights, layouts::Word, 32); FIELD(RouteArguments, addresses, layouts::Word, 40);
FIELD(RouteArguments, uses, layouts::Word, 48); FIELD(RouteArguments, ring, layouts::Word, 56);
FIELD(RouteArguments, posted, layouts::Word, 64); FIELD(RouteArguments, status, layouts::Word, 72);
FIELD(RouteArguments, copies, layouts::Word, 80); FIELD(RouteArguments, expert_scales, layouts::Word, 88);
FIELD(RouteArguments, guess, Guess, 96); FIELD(RouteArguments, experts, uint32_t, 152);
FIELD(RouteArguments, k, uint32_t, 156); FIELD(RouteArguments, normalise, uint32_t, 160);
FIELD(RouteArguments, first_key, uint32_t, 164); FIELD(RouteArguments, ring_mask, uint32_t, 168);
FIELD(RouteArguments, ask, uint32_t, 172); FIELD(RouteArguments, layer, uint32_t, 176);
FIELD(RouteArguments, padding, uint32_t, 180);
KERNEL(route_256, RouteArguments); KERNEL(route_512, RouteArguments); KERNEL(route_1024, RouteArguments);

STRUCTURE(Ended, 24);
FIELD(Ended, blocks, layouts::Word, 0); FIELD(Ended, word, layouts::Word, 8); FIELD(Ended, layer, uint32_t, 16);
FIELD(Ended, padding, uint32_t, 20);

STRUCTURE(ExpertArguments, 464);
FIELD(ExpertArguments, x, layouts::Word, 0); FIELD(ExpertArguments, chosen, layouts::Word, 8);
FIELD(ExpertArguments, weights, layouts::Word, 16); FIELD(ExpertArguments, addresses, layouts::Word, 24);
FIELD(ExpertArguments, answers, layouts::Word, 32); FIELD(ExpertArguments, status, layouts::Word, 40);
FIELD(ExpertArguments, inner, layouts::Word, 48); FIELD(ExpertArguments, shared_inner, layouts::Word, 56);
FIELD(ExpertArguments, shared_gate, layouts::Word, 64); FIELD(ExpertArguments, out, layouts::Word, 72);
FIELD(ExpertArguments, copies, layouts::Word, 80); FIELD(ExpertArguments, experts, Experts, 88);
FIELD(ExpertArguments, gate, Matrix, 280); FIELD(ExpertArguments, up, Matrix, 328);
FIELD(ExpertArguments, down, Matrix, 376); FIELD(ExpertArguments, ended, Ended, 424);
FIELD(ExpertArguments, hidden, uint32_t, 448); FIELD(ExpertArguments, k, uint32_t, 452);
FIELD(ExpertArguments, first_key, uint32_t, 456); FIELD(ExpertArguments, padding, uint32_t, 460);
KERNEL(expert_inner, ExpertArguments); KERNEL(expert_outer, ExpertArguments);
KERNEL(expert_inner_blocks, ExpertArguments); KERNEL(expert_outer_blocks, ExpertArguments);

STRUCTURE(GroupArguments, 48);
FIELD(GroupArguments, chosen, layouts::Word, 0); FIELD(GroupArguments, starts, layouts::Word, 8);
FIELD(GroupArguments, pair_token, layouts::Word, 16); FIELD(GroupArguments, place, layouts::Word, 24);
FIELD(GroupArguments, tokens, uint32_t, 32); FIELD(GroupArguments, k, uint32_t, 36);
FIELD(GroupArguments, experts, uint32_t, 40); FIELD(GroupArguments, padding, uint32_t, 44);
KERNEL(group_pairs, GroupArguments);

STRUCTURE(SwigluArguments, 24);
FIELD(SwigluArguments, gate, layouts::Word, 0); FIELD(SwigluArguments, up, layouts::Word, 8);
FIELD(SwigluArguments, count, layouts::Word, 16);
KERNEL(swiglu, SwigluArguments);

STRUCTURE(CombineArguments, 56);
FIELD(CombineArguments, routed, layouts::Word, 0); FIELD(CombineArguments, place, layouts::Word, 8);
FIELD(CombineArguments, weights, layouts::Word, 16); FIELD(CombineArguments, shared, layouts::Word, 24);
FIELD(CombineArguments, shared_gate, layouts::Word, 32); FIELD(CombineArguments, out, layouts::Word, 40);
FIELD(CombineArguments, hidden, uint32_t, 48); FIELD(CombineArguments, k, uint32_t, 52);
KERNEL(combine, CombineArguments);

STRUCTURE(PairArguments, 112);
FIELD(PairArguments, embedded, layouts::Word, 0); FIELD(PairArguments, outputs, layouts::Word, 8);
FIELD(PairArguments, ring, layouts::Word, 16); FIELD(PairArguments, positions, layouts::Word, 24);
FIELD(PairArguments, sequences, layouts::Word, 32); FIELD(PairArguments, starts, layouts::Word, 40);
FIELD(PairArguments, drafted, layouts::Word, 48); FIELD(PairArguments, embedding_norm, layouts::Word, 56);
FIELD(PairArguments, output_norm, layouts::Word, 64); FIELD(PairArguments, pairs, layouts::Word, 72);
FIELD(PairArguments, ring_stride, layouts::Word, 80); FIELD(PairArguments, ring_rows, uint32_t, 88);
FIELD(PairArguments, ring_width, uint32_t, 92); FIELD(PairArguments, hidden, uint32_t, 96);
FIELD(PairArguments, keep, uint32_t, 100); FIELD(PairArguments, epsilon, float, 104);
FIELD(PairArguments, padding, uint32_t, 108);
KERNEL(pair_rows, PairArguments);

STRUCTURE(LeaveOutArguments, 32);
FIELD(LeaveOutArguments, chosen, layouts::Word, 0); FIELD(LeaveOutArguments, weights, layouts::Word, 8);
FIELD(LeaveOutArguments, addresses, layouts::Word, 16); FIELD(LeaveOutArguments, k, uint32_t, 24);
FIELD(LeaveOutArguments, padding, uint32_t, 28);
KERNEL(leave_out_absent, LeaveOutArguments);

STRUCTURE(TakeDraftArguments, 72);
FIELD(TakeDraftArguments, token, layouts::Word, 0); FIELD(TakeDraftArguments, uses, layouts::Word, 8);
FIELD(TakeDraftArguments, input, layouts::Word, 16); FIELD(TakeDraftArguments, position, layouts::Word, 24);
FIELD(TakeDraftArguments, row, layouts::Word, 32); FIELD(TakeDraftArguments, drafted, layouts::Word, 40);
FIELD(TakeDraftArguments, tokens, layouts::Word, 48); FIELD(TakeDraftArguments, used, layouts::Word, 56);
FIELD(TakeDraftArguments, k, uint32_t, 64); FIELD(TakeDraftArguments, padding, uint32_t, 68);
KERNEL(take_draft, TakeDraftArguments);

STRUCTURE(NormStreamsArguments, 40);
FIELD(NormStreamsArguments, x, layouts::Word, 0); FIELD(NormStreamsArguments, weight, layouts::Word, 8);
FIELD(NormStreamsArguments, out, layouts::Word, 16); FIELD(NormStreamsArguments, hidden, uint32_t, 24);
FIELD(NormStreamsArguments, count, uint32_t, 28); FIELD(NormStreamsArguments, epsilon, float, 32);
FIELD(NormStreamsArguments, padding, uint32_t, 36);
KERNEL(norm_streams, NormStreamsArguments);

STRUCTURE(GateStreamsArguments, 32);
FIELD(GateStreamsArguments, values, layouts::Word, 0); FIELD(GateStreamsArguments, gates, layouts::Word, 8);
FIELD(GateStreamsArguments, block, layouts::Word, 16); FIELD(GateStreamsArguments, width, uint32_t, 24);
FIELD(GateStreamsArguments, count, uint32_t, 28);
KERNEL(activate_gates, GateStreamsArguments); KERNEL(merge_gated, GateStreamsArguments);
KERNEL(inject_streams, GateStreamsArguments);

STRUCTURE(StreamProductsArguments, 64);
FIELD(StreamProductsArguments, x, layouts::Word, 0); FIELD(StreamProductsArguments, matrix, Matrix, 8);
FIELD(StreamProductsArguments, out, layouts::Word, 56);
KERNEL(stream_products, StreamProductsArguments);

STRUCTURE(GatherArguments, 32);
FIELD(GatherArguments, x, layouts::Word, 0); FIELD(GatherArguments, rows, layouts::Word, 8);
FIELD(GatherArguments, out, layouts::Word, 16); FIELD(GatherArguments, width, uint32_t, 24);
FIELD(GatherArguments, padding, uint32_t, 28);
KERNEL(gather_rows, GatherArguments);

STRUCTURE(GateStepArguments, 200);
FIELD(GateStepArguments, x, layouts::Word, 0); FIELD(GateStepArguments, norm, layouts::Word, 8);
FIELD(GateStepArguments, partial, layouts::Word, 16); FIELD(GateStepArguments, block, layouts::Word, 24);
FIELD(GateStepArguments, inject, layouts::Word, 32); FIELD(GateStepArguments, down, Matrix, 40);
FIELD(GateStepArguments, weights, Matrix, 88); FIELD(GateStepArguments, up, Matrix, 136);
FIELD(GateStepArguments, hidden, uint32_t, 184); FIELD(GateStepArguments, count, uint32_t, 188);
FIELD(GateStepArguments, rank, uint32_t, 192); FIELD(GateStepArguments, epsilon, float, 196);
KERNEL(gate_narrow, GateStepArguments); KERNEL(gate_wide, GateStepArguments);

STRUCTURE(IndexArguments, 152);
FIELD(IndexArguments, rows, SequenceRows, 0); FIELD(IndexArguments, both, layouts::Word, 88);
FIELD(IndexArguments, query_norm, layouts::Word, 96); FIELD(IndexArguments, key_norm, layouts::Word, 104);
FIELD(IndexArguments, frequencies, layouts::Word, 112); FIELD(IndexArguments, heads, uint32_t, 120);
FIELD(IndexArguments, dim, uint32_t, 124); FIELD(IndexArguments, rotated, uint32_t, 128);
FIELD(IndexArguments, kind, uint32_t, 132); FIELD(IndexArguments, place, uint32_t, 136);
FIELD(IndexArguments, bytes, uint32_t, 140); FIELD(IndexArguments, epsilon, float, 144);
FIELD(IndexArguments, magnitude, float, 148);
KERNEL(turn_index_queries, IndexArguments); KERNEL(make_index_keys, IndexArguments);
KERNEL(keep_index_keys, IndexArguments);

STRUCTURE(UnitAttentionArguments, 104);
FIELD(UnitAttentionArguments, query, layouts::Word, 0); FIELD(UnitAttentionArguments, cache_keys, layouts::Word, 8);
FIELD(UnitAttentionArguments, cache_values, layouts::Word, 16); FIELD(UnitAttentionArguments, out, layouts::Word, 24);
FIELD(UnitAttentionArguments, partial, layouts::Word, 32); FIELD(UnitAttentionArguments, positions, layouts::Word, 40);
FIELD(UnitAttentionArguments, sequences, layouts::Word, 48); FIELD(UnitAttentionArguments, chosen, layouts::Word, 56);
FIELD(UnitAttentionArguments, query_heads, uint32_t, 64); FIELD(UnitAttentionArguments, key_value_heads, uint32_t, 68);
FIELD(UnitAttentionArguments, dim, uint32_t, 72); FIELD(UnitAttentionArguments, context, uint32_t, 76);
FIELD(UnitAttentionArguments, kv_type, uint32_t, 80); FIELD(UnitAttentionArguments, unit, uint32_t, 84);
FIELD(UnitAttentionArguments, top, uint32_t, 88); FIELD(UnitAttentionArguments, parts, uint32_t, 92);
FIELD(UnitAttentionArguments, part_keys, uint32_t, 96); FIELD(UnitAttentionArguments, scale, float, 100);
KERNEL(attend_units, UnitAttentionArguments); KERNEL(join_unit_parts, UnitAttentionArguments);

STRUCTURE(LatentRowArguments, 80);
FIELD(LatentRowArguments, rows, layouts::Word, 0); FIELD(LatentRowArguments, norm, layouts::Word, 8);
FIELD(LatentRowArguments, frequencies, layouts::Word, 16); FIELD(LatentRowArguments, positions, layouts::Word, 24);
FIELD(LatentRowArguments, sequences, layouts::Word, 32); FIELD(LatentRowArguments, cache, layouts::Word, 40);
FIELD(LatentRowArguments, rank, uint32_t, 48); FIELD(LatentRowArguments, rotated, uint32_t, 52);
FIELD(LatentRowArguments, context, uint32_t, 56); FIELD(LatentRowArguments, kv_type, uint32_t, 60);
FIELD(LatentRowArguments, neighbours, uint32_t, 64); FIELD(LatentRowArguments, epsilon, float, 68);
FIELD(LatentRowArguments, magnitude, float, 72); FIELD(LatentRowArguments, padding, uint32_t, 76);
KERNEL(append_latent, LatentRowArguments);

STRUCTURE(LatentRotateArguments, 56);
FIELD(LatentRotateArguments, query, layouts::Word, 0); FIELD(LatentRotateArguments, out, layouts::Word, 8);
FIELD(LatentRotateArguments, frequencies, layouts::Word, 16);
FIELD(LatentRotateArguments, positions, layouts::Word, 24); FIELD(LatentRotateArguments, heads, uint32_t, 32);
FIELD(LatentRotateArguments, plain, uint32_t, 36); FIELD(LatentRotateArguments, rank, uint32_t, 40);
FIELD(LatentRotateArguments, rotated, uint32_t, 44); FIELD(LatentRotateArguments, neighbours, uint32_t, 48);
FIELD(LatentRotateArguments, magnitude, float, 52);
KERNEL(rotate_latent, LatentRotateArguments);

STRUCTURE(LatentHeadsArguments, 96);
FIELD(LatentHeadsArguments, matrix, Matrix, 0); FIELD(LatentHeadsArguments, x, layouts::Word, 48);
FIELD(LatentHeadsArguments, out, layouts::Word, 56); FIELD(LatentHeadsArguments, tokens, uint32_t, 64);
FIELD(LatentHeadsArguments, heads, uint32_t, 68); FIELD(LatentHeadsArguments, x_width, uint32_t, 72);
FIELD(LatentHeadsArguments, out_width, uint32_t, 76); FIELD(LatentHeadsArguments, stride, uint32_t, 80);
FIELD(LatentHeadsArguments, first, uint32_t, 84); FIELD(LatentHeadsArguments, count, uint32_t, 88);
FIELD(LatentHeadsArguments, padding, uint32_t, 92);
KERNEL(latent_heads, LatentHeadsArguments); KERNEL(latent_heads_blocks, LatentHeadsArguments);

STRUCTURE(LatentArguments, 96);
FIELD(LatentArguments, query, layouts::Word, 0); FIELD(LatentArguments, cache, layouts::Word, 8);
FIELD(LatentArguments, out, layouts::Word, 16); FIELD(LatentArguments, partial, layouts::Word, 24);
FIELD(LatentArguments, positions, layouts::Word, 32); FIELD(LatentArguments, sequences, layouts::Word, 40);
FIELD(LatentArguments, chosen, layouts::Word, 48); FIELD(LatentArguments, heads, uint32_t, 56);
FIELD(LatentArguments, rank, uint32_t, 60); FIELD(LatentArguments, row, uint32_t, 64);
FIELD(LatentArguments, context, uint32_t, 68); FIELD(LatentArguments, splits, uint32_t, 72);
FIELD(LatentArguments, tokens, uint32_t, 76); FIELD(LatentArguments, scale, float, 80);
FIELD(LatentArguments, kv_type, uint32_t, 84); FIELD(LatentArguments, single, uint32_t, 88);
FIELD(LatentArguments, top, uint32_t, 92);
KERNEL(attend_latent_2, LatentArguments); KERNEL(attend_latent_4, LatentArguments);
KERNEL(join_latent, LatentArguments); KERNEL(attend_latent_f16, LatentArguments);
KERNEL(attend_latent_bf16, LatentArguments); KERNEL(attend_chosen_2, LatentArguments);
KERNEL(attend_chosen_f16, LatentArguments); KERNEL(attend_chosen_bf16, LatentArguments);

STRUCTURE(NormArguments, 40);
FIELD(NormArguments, x, layouts::Word, 0); FIELD(NormArguments, weight, layouts::Word, 8);
FIELD(NormArguments, out, layouts::Word, 16); FIELD(NormArguments, rows, layouts::Word, 24);
FIELD(NormArguments, width, uint32_t, 32); FIELD(NormArguments, epsilon, float, 36);
KERNEL(rms_norm, NormArguments);

STRUCTURE(GateArguments, 24);
FIELD(GateArguments, x, layouts::Word, 0); FIELD(GateArguments, gate, layouts::Word, 8);
FIELD(GateArguments, count, uint32_t, 16); FIELD(GateArguments, padding, uint32_t, 20);
KERNEL(sigmoid_gate, GateArguments);

STRUCTURE(GateHeadsArguments, 24);
FIELD(GateHeadsArguments, x, layouts::Word, 0); FIELD(GateHeadsArguments, gate, layouts::Word, 8);
FIELD(GateHeadsArguments, dim, uint32_t, 16); FIELD(GateHeadsArguments, count, uint32_t, 20);
KERNEL(gate_heads, GateHeadsArguments);

STRUCTURE(SplitArguments, 32);
FIELD(SplitArguments, both, layouts::Word, 0); FIELD(SplitArguments, query, layouts::Word, 8);
FIELD(SplitArguments, gate, layouts::Word, 16); FIELD(SplitArguments, dim, uint32_t, 24);
FIELD(SplitArguments, count, uint32_t, 28);
KERNEL(split_query_gate, SplitArguments);

STRUCTURE(RotateArguments, 56);
FIELD(RotateArguments, x, layouts::Word, 0); FIELD(RotateArguments, weight, layouts::Word, 8);
FIELD(RotateArguments, frequencies, layouts::Word, 16); FIELD(RotateArguments, positions, layouts::Word, 24);
FIELD(RotateArguments, heads, uint32_t, 32); FIELD(RotateArguments, dim, uint32_t, 36);
FIELD(RotateArguments, rotary, uint32_t, 40); FIELD(RotateArguments, epsilon, float, 44);
FIELD(RotateArguments, magnitude, float, 48); FIELD(RotateArguments, padding, uint32_t, 52);
KERNEL(norm_and_rotate, RotateArguments);

STRUCTURE(ConvolveArguments, 64);
FIELD(ConvolveArguments, x, layouts::Word, 0); FIELD(ConvolveArguments, weight, layouts::Word, 8);
FIELD(ConvolveArguments, tail, layouts::Word, 16); FIELD(ConvolveArguments, out, layouts::Word, 24);
FIELD(ConvolveArguments, sequences, layouts::Word, 32); FIELD(ConvolveArguments, tokens, uint32_t, 40);
FIELD(ConvolveArguments, channels, uint32_t, 44); FIELD(ConvolveArguments, kernel, uint32_t, 48);
FIELD(ConvolveArguments, single, uint32_t, 52); FIELD(ConvolveArguments, tail_stride, layouts::Word, 56);
KERNEL(convolve, ConvolveArguments); KERNEL(convolve_tail, ConvolveArguments);

STRUCTURE(JoinRowsArguments, 48);
FIELD(JoinRowsArguments, first, layouts::Word, 0); FIELD(JoinRowsArguments, second, layouts::Word, 8);
FIELD(JoinRowsArguments, third, layouts::Word, 16); FIELD(JoinRowsArguments, to, layouts::Word, 24);
FIELD(JoinRowsArguments, first_width, uint32_t, 32); FIELD(JoinRowsArguments, second_width, uint32_t, 36);
FIELD(JoinRowsArguments, third_width, uint32_t, 40); FIELD(JoinRowsArguments, padding, uint32_t, 44);
KERNEL(join_rows, JoinRowsArguments);

STRUCTURE(GatedNormArguments, 40);
FIELD(GatedNormArguments, x, layouts::Word, 0); FIELD(GatedNormArguments, z, layouts::Word, 8);
FIELD(GatedNormArguments, weight, layouts::Word, 16); FIELD(GatedNormArguments, dim, uint32_t, 24);
FIELD(GatedNormArguments, epsilon, float, 28); FIELD(GatedNormArguments, by_sigmoid, uint32_t, 32);
FIELD(GatedNormArguments, padding, uint32_t, 36);
KERNEL(gated_norm, GatedNormArguments);

STRUCTURE(GateValuesArguments, 72);
FIELD(GateValuesArguments, value, layouts::Word, 0); FIELD(GateValuesArguments, streams, layouts::Word, 8);
FIELD(GateValuesArguments, key_norm, layouts::Word, 16); FIELD(GateValuesArguments, query_norm, layouts::Word, 24);
FIELD(GateValuesArguments, norm, layouts::Word, 32); FIELD(GateValuesArguments, values, layouts::Word, 40);
FIELD(GateValuesArguments, seen, layouts::Word, 48); FIELD(GateValuesArguments, hidden, uint32_t, 56);
FIELD(GateValuesArguments, count, uint32_t, 60); FIELD(GateValuesArguments, epsilon, float, 64);
FIELD(GateValuesArguments, padding, uint32_t, 68);
KERNEL(gate_values, GateValuesArguments);

STRUCTURE(MixNgramsArguments, 144);
FIELD(MixNgramsArguments, rows, SequenceRows, 0); FIELD(MixNgramsArguments, values, layouts::Word, 88);
FIELD(MixNgramsArguments, seen, layouts::Word, 96); FIELD(MixNgramsArguments, weight, layouts::Word, 104);
FIELD(MixNgramsArguments, streams, layouts::Word, 112); FIELD(MixNgramsArguments, ids, layouts::Word, 120);
FIELD(MixNgramsArguments, width, uint32_t, 128); FIELD(MixNgramsArguments, kernel, uint32_t, 132);
FIELD(MixNgramsArguments, apart, uint32_t, 136); FIELD(MixNgramsArguments, padding, uint32_t, 140);
KERNEL(mix_ngrams, MixNgramsArguments); KERNEL(keep_ngrams, MixNgramsArguments);

STRUCTURE(BiasArguments, 32);
FIELD(BiasArguments, x, layouts::Word, 0); FIELD(BiasArguments, bias, layouts::Word, 8);
FIELD(BiasArguments, starts, layouts::Word, 16); FIELD(BiasArguments, width, uint32_t, 24);
FIELD(BiasArguments, experts, uint32_t, 28);
KERNEL(add_bias, BiasArguments);

STRUCTURE(Activation, 48);
FIELD(Activation, gate_bias, layouts::Word, 0); FIELD(Activation, up_bias, layouts::Word, 8);
FIELD(Activation, down_bias, layouts::Word, 16); FIELD(Activation, alpha, float, 24);
FIELD(Activation, limit, float, 28); FIELD(Activation, in_turns, uint32_t, 32); FIELD(Activation, shared, uint32_t, 36);
FIELD(Activation, gelu, uint32_t, 40); FIELD(Activation, padding, uint32_t, 44);

STRUCTURE(PrepareArguments, 88);
FIELD(PrepareArguments, gate, layouts::Word, 0); FIELD(PrepareArguments, up, layouts::Word, 8);
FIELD(PrepareArguments, starts, layouts::Word, 16); FIELD(PrepareArguments, addresses, layouts::Word, 24);
FIELD(PrepareArguments, activation, Activation, 32); FIELD(PrepareArguments, experts, uint32_t, 80);
FIELD(PrepareArguments, inner, uint32_t, 84);
KERNEL(prepare_pairs, PrepareArguments);

STRUCTURE(LimitArguments, 32);
FIELD(LimitArguments, gate, layouts::Word, 0); FIELD(LimitArguments, up, layouts::Word, 8);
FIELD(LimitArguments, count, layouts::Word, 16); FIELD(LimitArguments, limit, float, 24);
FIELD(LimitArguments, padding, uint32_t, 28);
KERNEL(limit_pairs, LimitArguments);

STRUCTURE(GeluArguments, 24);
FIELD(GeluArguments, gate, layouts::Word, 0); FIELD(GeluArguments, up, layouts::Word, 8);
FIELD(GeluArguments, count, layouts::Word, 16);
KERNEL(gelu_pairs, GeluArguments); KERNEL(geglu, GeluArguments);

STRUCTURE(ExpertPartsArguments, 512);
FIELD(ExpertPartsArguments, experts, ExpertArguments, 0); FIELD(ExpertPartsArguments, activation, Activation, 464);
KERNEL(expert_inner_parts, ExpertPartsArguments); KERNEL(expert_outer_parts, ExpertPartsArguments);
KERNEL(expert_inner_parts_planes, ExpertPartsArguments); KERNEL(expert_outer_parts_planes, ExpertPartsArguments);

STRUCTURE(ConvolveRunArguments, 112);
FIELD(ConvolveRunArguments, x, layouts::Word, 0); FIELD(ConvolveRunArguments, weight, layouts::Word, 8);
FIELD(ConvolveRunArguments, tail, layouts::Word, 16); FIELD(ConvolveRunArguments, ring, layouts::Word, 24);
FIELD(ConvolveRunArguments, out, layouts::Word, 32); FIELD(ConvolveRunArguments, positions, layouts::Word, 40);
FIELD(ConvolveRunArguments, sequences, layouts::Word, 48); FIELD(ConvolveRunArguments, starts, layouts::Word, 56);
FIELD(ConvolveRunArguments, lags, layouts::Word, 64); FIELD(ConvolveRunArguments, tail_stride, layouts::Word, 72);
FIELD(ConvolveRunArguments, ring_stride, layouts::Word, 80); FIELD(ConvolveRunArguments, ring_row, uint32_t, 88);
FIELD(ConvolveRunArguments, queries, uint32_t, 92); FIELD(ConvolveRunArguments, tokens, uint32_t, 96);
FIELD(ConvolveRunArguments, channels, uint32_t, 100); FIELD(ConvolveRunArguments, kernel, uint32_t, 104);
FIELD(ConvolveRunArguments, padding, uint32_t, 108);
KERNEL(convolve_run, ConvolveRunArguments);

STRUCTURE(RowIndexArguments, 176);
FIELD(RowIndexArguments, rows, SequenceRows, 0); FIELD(RowIndexArguments, queries, layouts::Word, 88);
FIELD(RowIndexArguments, keys, layouts::Word, 96); FIELD(RowIndexArguments, norm, layouts::Word, 104);
FIELD(RowIndexArguments, bias, layouts::Word, 112); FIELD(RowIndexArguments, frequencies, layouts::Word, 120);
FIELD(RowIndexArguments, factors, layouts::Word, 128); FIELD(RowIndexArguments, heads, uint32_t, 136);
FIELD(RowIndexArguments, dim, uint32_t, 140); FIELD(RowIndexArguments, rotated, uint32_t, 144);
FIELD(RowIndexArguments, neighbours, uint32_t, 148); FIELD(RowIndexArguments, kind, uint32_t, 152);
FIELD(RowIndexArguments, place, uint32_t, 156); FIELD(RowIndexArguments, bytes, uint32_t, 160);
FIELD(RowIndexArguments, epsilon, float, 164); FIELD(RowIndexArguments, magnitude, float, 168);
FIELD(RowIndexArguments, split, uint32_t, 172);
KERNEL(make_row_index, RowIndexArguments);

STRUCTURE(NormRowsArguments, 40);
FIELD(NormRowsArguments, x, layouts::Word, 0); FIELD(NormRowsArguments, weight, layouts::Word, 8);
FIELD(NormRowsArguments, out, layouts::Word, 16); FIELD(NormRowsArguments, width, uint32_t, 24);
FIELD(NormRowsArguments, epsilon, float, 28); FIELD(NormRowsArguments, add, uint32_t, 32);
FIELD(NormRowsArguments, padding, uint32_t, 36);
KERNEL(norm_rows, NormRowsArguments);

STRUCTURE(BetweenArguments, 72);
FIELD(BetweenArguments, branch, layouts::Word, 0); FIELD(BetweenArguments, branch_weight, layouts::Word, 8);
FIELD(BetweenArguments, x, layouts::Word, 16); FIELD(BetweenArguments, first_weight, layouts::Word, 24);
FIELD(BetweenArguments, second_weight, layouts::Word, 32); FIELD(BetweenArguments, first, layouts::Word, 40);
FIELD(BetweenArguments, second, layouts::Word, 48); FIELD(BetweenArguments, zeros, layouts::Word, 56);
FIELD(BetweenArguments, width, uint32_t, 64); FIELD(BetweenArguments, epsilon, float, 68);
KERNEL(norm_between, BetweenArguments);

STRUCTURE(JoinArguments, 56);
FIELD(JoinArguments, x, layouts::Word, 0); FIELD(JoinArguments, weight, layouts::Word, 8);
FIELD(JoinArguments, branch, layouts::Word, 16); FIELD(JoinArguments, branch_weight, layouts::Word, 24);
FIELD(JoinArguments, out, layouts::Word, 32); FIELD(JoinArguments, factor, layouts::Word, 40);
FIELD(JoinArguments, width, uint32_t, 48); FIELD(JoinArguments, epsilon, float, 52);
KERNEL(norm_join, JoinArguments);

STRUCTURE(ScaleArguments, 32);
FIELD(ScaleArguments, x, layouts::Word, 0); FIELD(ScaleArguments, factor, layouts::Word, 8);
FIELD(ScaleArguments, count, layouts::Word, 16); FIELD(ScaleArguments, constant, float, 24);
FIELD(ScaleArguments, padding, uint32_t, 28);
KERNEL(scale_values, ScaleArguments);

STRUCTURE(CapArguments, 24);
FIELD(CapArguments, x, layouts::Word, 0); FIELD(CapArguments, count, layouts::Word, 8);
FIELD(CapArguments, cap, float, 16); FIELD(CapArguments, padding, uint32_t, 20);
KERNEL(cap_values, CapArguments);

STRUCTURE(ScoredRouteArguments, 240);
FIELD(ScoredRouteArguments, route, RouteArguments, 0); FIELD(ScoredRouteArguments, bias, layouts::Word, 184);
FIELD(ScoredRouteArguments, next_bias, layouts::Word, 192); FIELD(ScoredRouteArguments, given, layouts::Word, 200);
FIELD(ScoredRouteArguments, tokens, layouts::Word, 208); FIELD(ScoredRouteArguments, score, uint32_t, 216);
FIELD(ScoredRouteArguments, groups, uint32_t, 220); FIELD(ScoredRouteArguments, kept, uint32_t, 224);
FIELD(ScoredRouteArguments, scale, float, 228); FIELD(ScoredRouteArguments, columns, uint32_t, 232);
FIELD(ScoredRouteArguments, least_sum, float, 236);
KERNEL(route_scored, ScoredRouteArguments);

STRUCTURE(Source, 40);
FIELD(Source, x, layouts::Word, 0); FIELD(Source, norm, layouts::Word, 8); FIELD(Source, gate, layouts::Word, 16);
FIELD(Source, columns, uint32_t, 24); FIELD(Source, mode, uint32_t, 28); FIELD(Source, dim, uint32_t, 32);
FIELD(Source, epsilon, float, 36);

STRUCTURE(StepJob, 112);
FIELD(StepJob, matrix, Matrix, 0); FIELD(StepJob, second, Matrix, 48); FIELD(StepJob, out, layouts::Word, 96);
FIELD(StepJob, first_block, uint32_t, 104); FIELD(StepJob, kind, uint32_t, 108);

STRUCTURE(StepLinearArguments, 808);
FIELD(StepLinearArguments, source, Source, 0); FIELD(StepLinearArguments, taps, layouts::Word, 40);
FIELD(StepLinearArguments, tail, layouts::Word, 48); FIELD(StepLinearArguments, sequences, layouts::Word, 56);
FIELD(StepLinearArguments, tail_stride, layouts::Word, 64); FIELD(StepLinearArguments, ring, layouts::Word, 72);
FIELD(StepLinearArguments, positions, layouts::Word, 80); FIELD(StepLinearArguments, lags, layouts::Word, 88);
FIELD(StepLinearArguments, ring_stride, layouts::Word, 96); FIELD(StepLinearArguments, ring_row, uint32_t, 104);
FIELD(StepLinearArguments, padding, uint32_t, 108); FIELD(StepLinearArguments, kernel, uint32_t, 112);
FIELD(StepLinearArguments, jobs, uint32_t, 116); FIELD(StepLinearArguments, tiles_shift, uint32_t, 120);
FIELD(StepLinearArguments, rounds, uint32_t, 124); FIELD(StepLinearArguments, tokens, uint32_t, 128);
FIELD(StepLinearArguments, per_pass, uint32_t, 132); FIELD(StepLinearArguments, job, StepJob[6], 136);
KERNEL(step_linear, StepLinearArguments); KERNEL(step_linear_any, StepLinearArguments);
KERNEL(step_linear_blocks, StepLinearArguments); KERNEL(step_linear_grids, StepLinearArguments);
KERNEL(step_linear_planes, StepLinearArguments); KERNEL(several_linear_1, StepLinearArguments);
KERNEL(several_linear_2, StepLinearArguments); KERNEL(several_linear_4, StepLinearArguments);
KERNEL(several_normed_1, StepLinearArguments); KERNEL(several_normed_2, StepLinearArguments);
KERNEL(several_normed_4, StepLinearArguments); KERNEL(step_linear_usual, StepLinearArguments);
KERNEL(several_linear_Q4_K_2, StepLinearArguments); KERNEL(several_linear_Q4_K_4, StepLinearArguments);
KERNEL(several_linear_Q5_K_2, StepLinearArguments); KERNEL(several_linear_Q5_K_4, StepLinearArguments);
KERNEL(several_linear_Q6_K_2, StepLinearArguments); KERNEL(several_linear_Q6_K_4, StepLinearArguments);
KERNEL(several_linear_Q8_0_2, StepLinearArguments); KERNEL(several_linear_Q8_0_4, StepLinearArguments);
KERNEL(several_linear_usual_4, StepLinearArguments);

STRUCTURE(HeadsArguments, 136);
FIELD(HeadsArguments, query, layouts::Word, 0); FIELD(HeadsArguments, key, layouts::Word, 8);
FIELD(HeadsArguments, value, layouts::Word, 16); FIELD(HeadsArguments, query_norm, layouts::Word, 24);
FIELD(HeadsArguments, key_norm, layouts::Word, 32); FIELD(HeadsArguments, frequencies, layouts::Word, 40);
FIELD(HeadsArguments, out, layouts::Word, 48); FIELD(HeadsArguments, cache_keys, layouts::Word, 56);
FIELD(HeadsArguments, cache_values, layouts::Word, 64); FIELD(HeadsArguments, positions, layouts::Word, 72);
FIELD(HeadsArguments, places, layouts::Word, 80); FIELD(HeadsArguments, sequences, layouts::Word, 88);
FIELD(HeadsArguments, query_heads, uint32_t, 96); FIELD(HeadsArguments, key_value_heads, uint32_t, 100);
FIELD(HeadsArguments, dim, uint32_t, 104); FIELD(HeadsArguments, rotary, uint32_t, 108);
FIELD(HeadsArguments, context, uint32_t, 112); FIELD(HeadsArguments, query_stride, uint32_t, 116);
FIELD(HeadsArguments, epsilon, float, 120); FIELD(HeadsArguments, kv_type, uint32_t, 124);
FIELD(HeadsArguments, magnitude, float, 128); FIELD(HeadsArguments, norm_values, uint32_t, 132);
KERNEL(attention_heads, HeadsArguments);

STRUCTURE(StepExpertArguments, 408);
FIELD(StepExpertArguments, source, Source, 0); FIELD(StepExpertArguments, chosen, layouts::Word, 40);
FIELD(StepExpertArguments, weights, layouts::Word, 48); FIELD(StepExpertArguments, addresses, layouts::Word, 56);
FIELD(StepExpertArguments, answers, layouts::Word, 64); FIELD(StepExpertArguments, status, layouts::Word, 72);
FIELD(StepExpertArguments, inner, layouts::Word, 80); FIELD(StepExpertArguments, shared_inner, layouts::Word, 88);
FIELD(StepExpertArguments, shared_gate, layouts::Word, 96); FIELD(StepExpertArguments, out, layouts::Word, 104);
FIELD(StepExpertArguments, copies, layouts::Word, 112); FIELD(StepExpertArguments, experts, Experts, 120);
FIELD(StepExpertArguments, down, Matrix, 312); FIELD(StepExpertArguments, ended, Ended, 360);
FIELD(StepExpertArguments, k, uint32_t, 384); FIELD(StepExpertArguments, first_key, uint32_t, 388);
FIELD(StepExpertArguments, rounds, uint32_t, 392); FIELD(StepExpertArguments, tiles_shift, uint32_t, 396);
FIELD(StepExpertArguments, tokens, uint32_t, 400); FIELD(StepExpertArguments, per_pass, uint32_t, 404);
KERNEL(step_inner, StepExpertArguments); KERNEL(step_inner_narrow, StepExpertArguments);
KERNEL(step_outer, StepExpertArguments); KERNEL(step_inner_blocks, StepExpertArguments);
KERNEL(step_inner_grids, StepExpertArguments); KERNEL(step_outer_blocks, StepExpertArguments);
KERNEL(step_outer_grids, StepExpertArguments); KERNEL(step_inner_planes, StepExpertArguments);
KERNEL(step_outer_planes, StepExpertArguments); KERNEL(several_inner, StepExpertArguments);
KERNEL(several_inner_narrow, StepExpertArguments); KERNEL(several_inner_four, StepExpertArguments);
KERNEL(several_inner_four_narrow, StepExpertArguments); KERNEL(several_outer, StepExpertArguments);
KERNEL(step_inner_usual, StepExpertArguments); KERNEL(step_outer_usual, StepExpertArguments);
KERNEL(several_outer_usual, StepExpertArguments);

STRUCTURE(StepLimitedArguments, 520);
FIELD(StepLimitedArguments, step, StepExpertArguments, 0); FIELD(StepLimitedArguments, gate, Matrix, 408);
FIELD(StepLimitedArguments, up, Matrix, 456); FIELD(StepLimitedArguments, shared_inner, layouts::Word, 504);
FIELD(StepLimitedArguments, limit, float, 512); FIELD(StepLimitedArguments, padding, uint32_t, 516);
KERNEL(step_inner_limited, StepLimitedArguments);

STRUCTURE(StepRoutedArguments, 592);
FIELD(StepRoutedArguments, step, StepExpertArguments, 0); FIELD(StepRoutedArguments, route, RouteArguments, 408);
KERNEL(step_inner_routed, StepRoutedArguments); KERNEL(step_inner_narrow_routed, StepRoutedArguments);
KERNEL(several_inner_routed, StepRoutedArguments); KERNEL(several_inner_narrow_routed, StepRoutedArguments);
KERNEL(several_inner_four_routed, StepRoutedArguments); KERNEL(several_inner_four_narrow_routed, StepRoutedArguments);

STRUCTURE(WeighStreamsArguments, 56);
FIELD(WeighStreamsArguments, streams, layouts::Word, 0); FIELD(WeighStreamsArguments, weights, layouts::Word, 8);
FIELD(WeighStreamsArguments, base, layouts::Word, 16); FIELD(WeighStreamsArguments, scale, layouts::Word, 24);
FIELD(WeighStreamsArguments, hidden, uint32_t, 32); FIELD(WeighStreamsArguments, count, uint32_t, 36);
FIELD(WeighStreamsArguments, iterations, uint32_t, 40); FIELD(WeighStreamsArguments, reads_alone, uint32_t, 44);
FIELD(WeighStreamsArguments, epsilon, float, 48); FIELD(WeighStreamsArguments, norm_epsilon, float, 52);
KERNEL(weigh_streams, WeighStreamsArguments);

STRUCTURE(StreamsArguments, 40);
FIELD(StreamsArguments, streams, layouts::Word, 0); FIELD(StreamsArguments, weights, layouts::Word, 8);
FIELD(StreamsArguments, block, layouts::Word, 16); FIELD(StreamsArguments, hidden, uint32_t, 24);
FIELD(StreamsArguments, count, uint32_t, 28); FIELD(StreamsArguments, outputs, uint32_t, 32);
FIELD(StreamsArguments, padding, uint32_t, 36);
KERNEL(collapse_streams, StreamsArguments); KERNEL(spread_streams, StreamsArguments);
KERNEL(mix_streams, StreamsArguments);

STRUCTURE(TileFewJob, 64);
FIELD(TileFewJob, matrix, Matrix, 0); FIELD(TileFewJob, out, layouts::Word, 48);
FIELD(TileFewJob, first_block, uint32_t, 56); FIELD(TileFewJob, piece, uint32_t, 60);

STRUCTURE(TileFewArguments, 456);
FIELD(TileFewArguments, parts, layouts::Word, 0); FIELD(TileFewArguments, sums, layouts::Word, 8);
FIELD(TileFewArguments, gather, layouts::Word, 16); FIELD(TileFewArguments, addresses, layouts::Word, 24);
FIELD(TileFewArguments, places, layouts::Word, 32); FIELD(TileFewArguments, tiles, layouts::Word, 40);
FIELD(TileFewArguments, tile_count, layouts::Word, 48); FIELD(TileFewArguments, job, TileFewJob[6], 56);
FIELD(TileFewArguments, jobs, uint32_t, 440); FIELD(TileFewArguments, tokens, uint32_t, 444);
FIELD(TileFewArguments, add, uint32_t, 448); FIELD(TileFewArguments, grouped, uint32_t, 452);
KERNEL(few_columns_2_8, TileFewArguments); KERNEL(few_columns_2_16, TileFewArguments);
KERNEL(few_columns_2_fine_8, TileFewArguments); KERNEL(few_columns_2_fine_16, TileFewArguments);
KERNEL(few_columns_4_8, TileFewArguments); KERNEL(few_columns_4_16, TileFewArguments);
KERNEL(few_columns_4_fine_8, TileFewArguments); KERNEL(few_columns_4_fine_16, TileFewArguments);
KERNEL(few_columns_8_8, TileFewArguments); KERNEL(few_columns_8_16, TileFewArguments);
KERNEL(few_columns_8_fine_8, TileFewArguments); KERNEL(few_columns_8_fine_16, TileFewArguments);
KERNEL(few_rows_2_8, TileFewArguments); KERNEL(few_rows_2_16, TileFewArguments);
KERNEL(few_rows_2_fine_8, TileFewArguments); KERNEL(few_rows_2_fine_16, TileFewArguments);
KERNEL(few_rows_4_8, TileFewArguments); KERNEL(few_rows_4_16, TileFewArguments);
KERNEL(few_rows_4_fine_8, TileFewArguments); KERNEL(few_rows_4_fine_16, TileFewArguments);
KERNEL(few_rows_8_8, TileFewArguments); KERNEL(few_rows_8_16, TileFewArguments);
KERNEL(few_rows_8_fine_8, TileFewArguments); KERNEL(few_rows_8_fine_16, TileFewArguments);

STRUCTURE(TileArguments, 176);
FIELD(TileArguments, x, layouts::Word, 0); FIELD(TileArguments, gather, layouts::Word, 8);
FIELD(TileArguments, out, layouts::Word, 16); FIELD(TileArguments, out_second, layouts::Word, 24);
FIELD(TileArguments, addresses, layouts::Word, 32); FIELD(TileArguments, places, layouts::Word, 40);
FIELD(TileArguments, tiles, layouts::Word, 48); FIELD(TileArguments, tile_count, layouts::Word, 56);
FIELD(TileArguments, matrix, Matrix, 64); FIELD(TileArguments, second, Matrix, 112);
FIELD(TileArguments, tokens, uint32_t, 160); FIELD(TileArguments, add, uint32_t, 164);
FIELD(TileArguments, first_piece, uint32_t, 168); FIELD(TileArguments, grouped, uint32_t, 172);
KERNEL(tile_2, TileArguments); KERNEL(tile_3, TileArguments); KERNEL(tile_4, TileArguments);
KERNEL(tile_5, TileArguments); KERNEL(tile_6, TileArguments); KERNEL(tile_8, TileArguments);
KERNEL(tile_any, TileArguments); KERNEL(tile_any_blocks, TileArguments);

STRUCTURE(SplitTokensArguments, 56);
FIELD(SplitTokensArguments, x, layouts::Word, 0); FIELD(SplitTokensArguments, up, layouts::Word, 8);
FIELD(SplitTokensArguments, parts, layouts::Word, 16); FIELD(SplitTokensArguments, sums, layouts::Word, 24);
FIELD(SplitTokensArguments, tiles, layouts::Word, 32); FIELD(SplitTokensArguments, tile_count, layouts::Word, 40);
FIELD(SplitTokensArguments, columns, uint32_t, 48); FIELD(SplitTokensArguments, rows, uint32_t, 52);
KERNEL(split_tokens, SplitTokensArguments); KERNEL(split_tokens_blocks, SplitTokensArguments);

STRUCTURE(TileSplitArguments, 192);
FIELD(TileSplitArguments, parts, layouts::Word, 0); FIELD(TileSplitArguments, sums, layouts::Word, 8);
FIELD(TileSplitArguments, gather, layouts::Word, 16); FIELD(TileSplitArguments, out, layouts::Word, 24);
FIELD(TileSplitArguments, out_second, layouts::Word, 32); FIELD(TileSplitArguments, addresses, layouts::Word, 40);
FIELD(TileSplitArguments, places, layouts::Word, 48); FIELD(TileSplitArguments, tiles, layouts::Word, 56);
FIELD(TileSplitArguments, tile_count, layouts::Word, 64); FIELD(TileSplitArguments, matrix, Matrix, 72);
FIELD(TileSplitArguments, second, Matrix, 120); FIELD(TileSplitArguments, tokens, uint32_t, 168);
FIELD(TileSplitArguments, add, uint32_t, 172); FIELD(TileSplitArguments, first_piece, uint32_t, 176);
FIELD(TileSplitArguments, grouped, uint32_t, 180); FIELD(TileSplitArguments, stages, uint32_t, 184);
FIELD(TileSplitArguments, tile, uint32_t, 188);
KERNEL(tile_split_2, TileSplitArguments); KERNEL(tile_split_2_narrow, TileSplitArguments);
KERNEL(tile_split_2_small, TileSplitArguments); KERNEL(tile_split_2_fine, TileSplitArguments);
KERNEL(tile_split_4, TileSplitArguments); KERNEL(tile_split_4_narrow, TileSplitArguments);
KERNEL(tile_split_4_small, TileSplitArguments); KERNEL(tile_split_4_fine, TileSplitArguments);
KERNEL(tile_split_8, TileSplitArguments); KERNEL(tile_split_8_narrow, TileSplitArguments);
KERNEL(tile_split_8_small, TileSplitArguments); KERNEL(tile_split_8_fine, TileSplitArguments);
KERNEL(tile_blocks_Q4_0, TileSplitArguments); KERNEL(tile_blocks_Q4_1, TileSplitArguments);
KERNEL(tile_blocks_Q5_0, TileSplitArguments); KERNEL(tile_blocks_Q5_1, TileSplitArguments);
KERNEL(tile_blocks_Q8_0, TileSplitArguments); KERNEL(tile_blocks_Q2_K, TileSplitArguments);
KERNEL(tile_blocks_Q3_K, TileSplitArguments); KERNEL(tile_blocks_Q4_K, TileSplitArguments);
KERNEL(tile_blocks_Q5_K, TileSplitArguments); KERNEL(tile_blocks_Q6_K, TileSplitArguments);
KERNEL(tile_blocks_IQ4_NL, TileSplitArguments); KERNEL(tile_blocks_IQ4_XS, TileSplitArguments);
KERNEL(tile_blocks_MXFP4, TileSplitArguments); KERNEL(tile_blocks_IQ2_XXS, TileSplitArguments);
KERNEL(tile_blocks_IQ2_XS, TileSplitArguments); KERNEL(tile_blocks_IQ2_S, TileSplitArguments);
KERNEL(tile_blocks_IQ3_XXS, TileSplitArguments); KERNEL(tile_blocks_IQ3_S, TileSplitArguments);
KERNEL(tile_blocks_IQ1_S, TileSplitArguments); KERNEL(tile_blocks_IQ1_M, TileSplitArguments);
KERNEL(tile_blocks_TQ1_0, TileSplitArguments); KERNEL(tile_blocks_TQ2_0, TileSplitArguments);
KERNEL(tile_blocks_NVFP4, TileSplitArguments); KERNEL(tile_blocks_MXFP4_PLANES, TileSplitArguments);
KERNEL(tile_blocks_FP8, TileSplitArguments); KERNEL(tile_blocks_F32, TileSplitArguments);
KERNEL(tile_blocks_F16, TileSplitArguments); KERNEL(tile_blocks_BF16, TileSplitArguments);

#undef STRUCTURE
#undef FIELD
#undef KERNEL
