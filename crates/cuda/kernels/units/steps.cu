// Products and experts of steps, of one token and of several.
#include "../step.cu"
#include "../several.cu"
#include "../several_experts.cu"
#include "../step_routed.cu"
