from tests.airflow_home import use_own_airflow_home

use_own_airflow_home()
