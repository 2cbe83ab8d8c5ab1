// Writes llama.cpp's logits for token ids, [tokens, vocabulary] in binary32: the second reference for GGUF files.
//
//   g++ -O2 -I LLAMA/include -I LLAMA/ggml/include logits.cpp -L BUILD/bin -lllama -lggml -lggml-base -o logits
//   LD_LIBRARY_PATH=BUILD/bin ./logits MODEL.gguf IDS OUT [f32]      (IDS: a JSON array or ids separated by spaces)
//
// `f32` keeps keys and values in binary32. bench/llama/divergence.py compares the result with `flashmoe score`.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "llama.h"

int main(int count, char **arguments) {
    if (count < 4) {
        std::fprintf(stderr, "usage: logits MODEL.gguf IDS OUT [f32]\n");
        return 2;
    }
    std::ifstream file(arguments[2]);
    std::stringstream text;
    text << file.rdbuf();
    std::string ids = text.str();
    for (char &c : ids) {
        if (c < '0' || c > '9') c = ' ';
    }
    std::stringstream numbers(ids);
    std::vector<llama_token> tokens;
    for (llama_token id; numbers >> id;) tokens.push_back(id);

    llama_model_params model_parameters = llama_model_default_params();
    model_parameters.n_gpu_layers = 0;
    llama_model *model = llama_model_load_from_file(arguments[1], model_parameters);
    if (!model) return 1;
    llama_context_params parameters = llama_context_default_params();
    parameters.n_ctx = tokens.size() + 8;
    parameters.n_batch = parameters.n_ubatch = tokens.size();
    parameters.n_threads = parameters.n_threads_batch = 2;
    if (count > 4 && !std::strcmp(arguments[4], "f32")) {
        parameters.type_k = parameters.type_v = GGML_TYPE_F32;
    }
    llama_context *context = llama_init_from_model(model, parameters);
    if (!context) return 1;
    llama_batch batch = llama_batch_init(tokens.size(), 0, 1);
    for (size_t i = 0; i < tokens.size(); i++) {
        batch.token[i] = tokens[i];
        batch.pos[i] = i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = 1;
    }
    batch.n_tokens = tokens.size();
    if (llama_decode(context, batch)) return 1;
    const int vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
    std::FILE *out = std::fopen(arguments[3], "wb");
    if (!out) return 1;
    for (size_t i = 0; i < tokens.size(); i++) {
        std::fwrite(llama_get_logits_ith(context, i), sizeof(float), vocabulary, out);
    }
    return std::fclose(out) == 0 ? 0 : 1;
}
