// Delta rules, convolutions, norms and gates of heads, and drawing.
#include "../mixer.cu"
#include "../mixer_rounds.cu"
#include "../delta_chunk.cu"
#include "../heads.cu"
#include "../sandwich.cu"
#include "../head.cu"
#include "../draw.cu"
