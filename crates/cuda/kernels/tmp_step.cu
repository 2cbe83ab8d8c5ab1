#include "step.cu"
#include "mixer.cu"
