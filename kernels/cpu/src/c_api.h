// The library's whole surface, in plain C. `kernels/cpu/library.py` declares the same structures for ctypes.
//
// Pointers are borrowed for the length of the call unless a comment says otherwise. Functions that can fail return 0 when
// all went well and 1 when memory ran out; sizes and ids are checked by the caller.
#pragma once
#include <stdint.h>

#define RAMET_ABI_VERSION 2

#ifdef __cplusplus
extern "C" {
#endif

// A packed matrix (layout.h). `data` belongs to whoever mapped it.
typedef struct {
    int32_t num_outputs, num_inputs, format, is_planes;
    uint8_t* data;
} ramet_matrix;

// One product of a layer: up to three matrices side by side (query, key, value), each with its own format, and a bias over
// all their outputs or null.
typedef struct {
    int32_t num_parts;
    ramet_matrix parts[3];
    const float* bias;
} ramet_linear;

// gate_up: one matrix of 2 * intermediate outputs, channel blocks of gate and up alternating (16 gate, 16 up, ...); its
// bias lies the same way.
typedef struct {
    const float* input_norm;
    const float* post_attention_norm;
    const float* query_norm;  // [head_dim], or null
    const float* key_norm;
    int32_t sliding_window;   // positions a token sees, itself included; 0 sees all
    ramet_linear qkv, output, gate_up, down;
} ramet_layer;

typedef struct {
    int32_t num_layers, hidden_size, intermediate_size, num_heads, num_kv_heads, head_dim, vocab_size;
    int32_t rotary_dim;  // dimensions of a head that are rotated
    float norm_eps;
    const float* final_norm;
    ramet_matrix embedding;
    ramet_matrix lm_head;
    const ramet_layer* layers;
    uint16_t* kv_data;       // layout.h
    int64_t kv_block_stride;  // elements of one block over all layers
} ramet_model_config;

// One step (runtime/batch.py). Rows are the flattened new tokens of all sequences.
typedef struct {
    int32_t num_tokens, num_sequences, num_logit_rows;
    const int32_t* token_ids;           // [num_tokens]
    const int32_t* positions;           // [num_tokens]
    const int32_t* query_starts;        // [num_sequences + 1]
    const int32_t* block_tables;        // one sequence after another
    const int32_t* block_table_starts;  // [num_sequences + 1]
    const int32_t* logit_rows;          // [num_logit_rows]
    const float* cos;                   // [positions][rotary_dim / 2], as many as the longest context needs
    const float* sin;
    float* logits;                      // [num_logit_rows][vocab_size], written
    int32_t num_threads;
    int32_t is_sharing;                 // attention tiles over several sequences; results are the same either way
} ramet_step;

int32_t ramet_abi_version(void);
int32_t ramet_has_openmp(void);
int32_t ramet_uses_amx(void);

void* ramet_map_region(int64_t num_bytes);  // zeroed; null when there is none
void ramet_unmap_region(void* region, int64_t num_bytes);

// The model keeps pointers to all that the config points at; they must outlive it. Null when memory ran out.
void* ramet_model_new(const ramet_model_config* config);
void ramet_model_free(void* model);
int32_t ramet_model_step(void* model, const ramet_step* step);
// Seconds that thread 0 spent in each phase of all steps so far; `phases` has room for RAMET_NUM_PHASES.
#define RAMET_NUM_PHASES 6
void ramet_model_times(void* model, double* phases);

// Copies whole blocks, all layers; every read happens before any write. `num_elements` is the block stride.
int32_t ramet_copy_blocks(uint16_t* kv_data, int64_t num_elements, const int32_t* sources, const int32_t* destinations,
                          int32_t num_copies);

// Packing. `row_of[i]` is the row of the matrix, which lies in groups, that source row i becomes. Sources are GGUF blocks as
// they lie in the file, or finite fp32. Returns 1 if a scale or minimum is not finite: the file is damaged. Writes how many
// groups of 4 bits lost precision because others of their row are much larger.
enum { RAMET_SOURCE_F32 = 0, RAMET_SOURCE_Q4_0 = 1, RAMET_SOURCE_Q4_1 = 2, RAMET_SOURCE_Q8_0 = 3, RAMET_SOURCE_Q4_K = 4 };
int64_t ramet_matrix_bytes(int32_t format, int32_t is_planes, int32_t num_outputs, int32_t num_inputs);
int32_t ramet_source_format(int32_t source);  // the packed format that a source becomes
int32_t ramet_pack_rows(const ramet_matrix* matrix, int32_t source, const void* rows, const int32_t* row_of,
                        int32_t num_rows, int32_t num_threads, int32_t* num_coarse_groups);
// After all rows were packed: makes `to`, which is `groups` itself or a matrix of planes, ready to be used.
int32_t ramet_finish_matrix(const ramet_matrix* groups, const ramet_matrix* to, int32_t num_threads);
// fp32 values of rows of a packed matrix: out [num_rows][num_inputs].
void ramet_unpack_rows(const ramet_matrix* matrix, const int32_t* rows, int32_t num_rows, float* out);

// Single operations, for tests and measurements.
int32_t ramet_multiply(const ramet_matrix* matrix, const float* x, int32_t num_tokens, float* y, int32_t num_threads);
int32_t ramet_quantize(const float* x, int32_t num_tokens, int32_t num_inputs, float* dequantized);
void ramet_rms_norm(const float* x, const float* weight, int32_t num_tokens, int32_t size, float eps, float* y);
void ramet_rotate(float* heads, int32_t num_heads, int32_t head_dim, const float* cos, const float* sin, int32_t half);
void ramet_silu_mul(const float* gate, const float* up, int32_t size, float* y);
// query [tokens][heads * head_dim]; key, value [tokens][kv heads * head_dim] are stored first. Layer 0 of a one-layer cache.
int32_t ramet_attention(const ramet_step* step, const float* query, const float* key, const float* value, int32_t num_heads,
                        int32_t num_kv_heads, int32_t head_dim, int32_t sliding_window, uint16_t* kv_data,
                        int64_t kv_block_stride, float* out);

#ifdef __cplusplus
}
#endif
