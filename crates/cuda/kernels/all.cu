// One translation unit, so that one image holds every kernel.
#include "draw.cu"
#include "linear.cu"
#include "mixer.cu"
#include "mixture.cu"
#include "step.cu"
#include "tile.cu"
#include "layouts.cuh"
