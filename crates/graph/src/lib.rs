//! CUDA graphs as data: nodes, edges, parameters and stream capture.
